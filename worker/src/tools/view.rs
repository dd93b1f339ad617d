//! A text file as it is matched: its characters, every line end a `\n`, without byte order mark. What is changed
//! in it goes back into the file's own encoding, with its line ends and its mark.

use std::{borrow::Cow, ops::Range};

use encoding_rs::{Encoding, UTF_16BE, UTF_16LE, WINDOWS_1252};

use crate::shell::legacy_encoding;

const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";
const LITTLE_MARK: &[u8] = b"\xff\xfe";
const BIG_MARK: &[u8] = b"\xfe\xff";
/// Where a NUL is looked for.
pub(super) const SNIFF_BYTES: usize = 8 * 1024;
/// Bytes that are no UTF-8, from 0x80 on, stand in the text as the private character of this number and theirs.
const BROKEN: u32 = 0xf700;

/// Whether the beginning holds a NUL.
pub(super) fn looks_binary(bytes: &[u8]) -> bool {
    bytes[..bytes.len().min(SNIFF_BYTES)].contains(&0)
}

/// How characters become bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    Utf8,
    /// UTF-8 with bytes that are not.
    BrokenUtf8,
    Utf16 {
        little: bool,
    },
    /// One without shifts: each piece of a text is coded on its own.
    Legacy(&'static Encoding),
}

/// A piece of a view's text, and what shall stand there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Patch {
    /// Where, in the view's text.
    pub(super) range: Range<usize>,
    /// With `\n` as line end.
    pub(super) new: String,
}

/// A text file for matching.
#[derive(Debug)]
pub(super) struct TextView {
    text: String,
    coding: Coding,
    mark: &'static [u8],
    /// Places in `text` of line ends that are `\r\n` in the file, ascending.
    crlf: Vec<usize>,
    n_lf: usize,
}

impl TextView {
    /// None for what is no text.
    pub(super) fn new(bytes: &[u8]) -> Option<Self> {
        let (source, coding, mark) = decode(bytes)?;
        let mut text = String::with_capacity(source.len());
        let mut crlf = Vec::new();
        let mut n_lf = 0;
        for line in source.split_inclusive('\n') {
            if let Some(start) = line.strip_suffix("\r\n") {
                text.push_str(start);
                crlf.push(text.len());
                text.push('\n');
            } else {
                n_lf += usize::from(line.ends_with('\n'));
                text.push_str(line);
            }
        }
        Some(Self { text, coding, mark, crlf, n_lf })
    }

    /// The text.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether most lines end in `\r\n`.
    pub(super) fn is_crlf(&self) -> bool {
        self.crlf.len() > self.n_lf
    }

    /// The line of a place, from 1.
    pub(super) fn line_of(&self, place: usize) -> usize {
        memchr::memchr_iter(b'\n', &self.text.as_bytes()[..place]).count() + 1
    }

    /// The encoding, where it is not plain UTF-8, as a sentence.
    pub(super) fn encoding(&self) -> Option<String> {
        match self.coding {
            Coding::Utf8 => None,
            Coding::BrokenUtf8 => {
                let broken = self.text.chars().filter(|character| broken_byte(*character).is_some()).count();
                Some(format!(
                    "UTF-8 with {broken} bytes that are not; they stand here as U+F780 to U+F7FF and stay as they are"
                ))
            }
            Coding::Utf16 { little: true } => Some("UTF-16 (little endian), which stays".to_owned()),
            Coding::Utf16 { little: false } => Some("UTF-16 (big endian), which stays".to_owned()),
            Coding::Legacy(encoding) => {
                Some(format!("not UTF-8 but, it seems, {}, which stays", encoding.name()))
            }
        }
    }

    /// The file with these pieces changed; they are in order and do not overlap. A line break that is put in
    /// takes the style of those it replaces, else the file's. An error says what the encoding has no place for.
    pub(super) fn patched(&self, patches: &[Patch]) -> Result<Vec<u8>, String> {
        let mut source = String::with_capacity(
            self.text.len() + patches.iter().map(|patch| patch.new.len()).sum::<usize>(),
        );
        let mut copied = 0;
        for Patch { range, new } in patches {
            self.copy(copied..range.start, &mut source);
            let breaks = memchr::memchr_iter(b'\n', &self.text.as_bytes()[range.clone()]).count();
            let crlf = self.crlf_in(range).len();
            let use_crlf = if breaks > 0 { 2 * crlf > breaks } else { self.is_crlf() };
            source.push_str(&if use_crlf {
                Cow::Owned(crlf_line_ends(new))
            } else {
                Cow::Borrowed(new.as_str())
            });
            copied = range.end;
        }
        self.copy(copied..self.text.len(), &mut source);
        self.encode(&source)
    }

    /// A whole new content in the style of the file.
    pub(super) fn replaced(&self, content: &str) -> Result<Vec<u8>, String> {
        let content = content.strip_prefix('\u{feff}').unwrap_or(content);
        if self.is_crlf() && !content.contains('\r') {
            self.encode(&crlf_line_ends(content))
        } else {
            self.encode(content)
        }
    }

    fn crlf_in(&self, range: &Range<usize>) -> &[usize] {
        let at = |place: usize| self.crlf.partition_point(|line_end| *line_end < place);
        &self.crlf[at(range.start)..at(range.end)]
    }

    /// A piece of the file as it is, line ends included.
    fn copy(&self, range: Range<usize>, source: &mut String) {
        let mut copied = range.start;
        for &line_end in self.crlf_in(&range) {
            source.push_str(&self.text[copied..line_end]);
            source.push('\r');
            copied = line_end;
        }
        source.push_str(&self.text[copied..range.end]);
    }

    fn encode(&self, source: &str) -> Result<Vec<u8>, String> {
        let mut bytes = self.mark.to_vec();
        bytes.extend(encode(source, self.coding)?);
        Ok(bytes)
    }
}

fn decode(bytes: &[u8]) -> Option<(Cow<'_, str>, Coding, &'static [u8])> {
    for (wide_mark, encoding, little) in [(LITTLE_MARK, UTF_16LE, true), (BIG_MARK, UTF_16BE, false)] {
        if let Some(rest) = bytes.strip_prefix(wide_mark) {
            let text = encoding.decode_without_bom_handling(rest).0;
            return whole(rest, text, Coding::Utf16 { little })
                .map(|(text, coding)| (text, coding, wide_mark));
        }
    }
    if looks_binary(bytes) {
        return None;
    }
    let (mark, rest): (&'static [u8], _) = match bytes.strip_prefix(UTF8_MARK) {
        Some(rest) => (UTF8_MARK, rest),
        None => (b"", bytes),
    };
    if let Ok(text) = std::str::from_utf8(rest) {
        return Some((Cow::Borrowed(text), Coding::Utf8, mark));
    }
    let (text, coding) = match legacy_encoding(rest) {
        // Broken UTF-8, or too many control characters.
        None => whole(rest, Cow::Owned(with_broken_bytes(rest)), Coding::BrokenUtf8)?,
        Some(guess) => {
            let decoded = |encoding: &'static Encoding| {
                whole(rest, encoding.decode_without_bom_handling(rest).0, Coding::Legacy(encoding))
            };
            // Each byte is a character of windows-1252, so that nothing is lost at least.
            decoded(guess).or_else(|| decoded(WINDOWS_1252))?
        }
    };
    Some((text, coding, mark))
}

/// The text, if it gives the same bytes again.
fn whole<'a>(bytes: &[u8], text: Cow<'a, str>, coding: Coding) -> Option<(Cow<'a, str>, Coding)> {
    encode(&text, coding).is_ok_and(|again| again == bytes).then_some((text, coding))
}

fn encode(source: &str, coding: Coding) -> Result<Vec<u8>, String> {
    match coding {
        Coding::Utf8 => Ok(source.as_bytes().to_vec()),
        Coding::BrokenUtf8 => {
            let mut bytes = Vec::with_capacity(source.len());
            for character in source.chars() {
                match broken_byte(character) {
                    Some(byte) => bytes.push(byte),
                    None => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
                }
            }
            Ok(bytes)
        }
        Coding::Utf16 { little } => Ok(source
            .encode_utf16()
            .flat_map(|unit| if little { unit.to_le_bytes() } else { unit.to_be_bytes() })
            .collect()),
        Coding::Legacy(encoding) => match encoding.encode(source) {
            (bytes, _, false) => Ok(bytes.into_owned()),
            (_, _, true) => {
                let foreign =
                    source.chars().find(|character| encoding.encode(character.encode_utf8(&mut [0; 4])).2);
                let named = foreign.map_or_else(String::new, |character| {
                    format!(" {character} (U+{:04X})", u32::from(character))
                });
                Err(format!("{} has no place for the character{named}", encoding.name()))
            }
        },
    }
}

fn with_broken_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().filter_map(|byte| char::from_u32(BROKEN + u32::from(*byte))));
    }
    text
}

fn broken_byte(character: char) -> Option<u8> {
    u32::from(character)
        .checked_sub(BROKEN)
        .and_then(|byte| u8::try_from(byte).ok())
        .filter(|byte| *byte >= 0x80)
}

/// `\r\n` to `\n`.
pub(super) fn plain_line_ends(text: &str) -> String {
    text.replace("\r\n", "\n")
}

/// `\n` to `\r\n`.
fn crlf_line_ends(text: &str) -> String {
    plain_line_ends(text).replace('\n', "\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_changed_keeps_its_bytes() {
        let check = |bytes: &[u8], old: &str, new: &str, expected: &[u8]| {
            let view = TextView::new(bytes).unwrap();
            assert_eq!(view.patched(&[]).unwrap(), bytes);
            let at = view.text().find(old).unwrap();
            let patch = Patch { range: at..at + old.len(), new: new.to_owned() };
            assert_eq!(view.patched(&[patch]).unwrap(), expected, "{old:?}");
        };
        check(b"\xef\xbb\xbfa\r\nb\nc\r\n", "b", "x\ny", b"\xef\xbb\xbfa\r\nx\r\ny\nc\r\n");
        check(b"a\r\nb\nc\n", "b\nc", "x\ny", b"a\r\nx\ny\n");
        check(b"\xff\xfea\0\r\0\n\0b\0", "b", "\u{1f600}", b"\xff\xfea\0\r\0\n\0\x3d\xd8\x00\xde");
        check(b"\xfe\xff\0a\0b", "b", "c", b"\xfe\xff\0a\0c");
        check(b"caf\xe9 cr\xe8me\n", "cr\u{e8}me", "th\u{e9}", b"caf\xe9 th\xe9\n");
        check(b"na\xc3\xafve \xff na\xc3\xafve b\n", " b", " c", b"na\xc3\xafve \xff na\xc3\xafve c\n");
        let chinese = |text: &str| encoding_rs::GBK.encode(text).0.into_owned();
        check(
            &chinese("\u{4f60}\u{597d}\u{ff0c}\u{4e16}\u{754c}\u{3002}\n"),
            "\u{4e16}",
            "\u{4f60}",
            &chinese("\u{4f60}\u{597d}\u{ff0c}\u{4f60}\u{754c}\u{3002}\n"),
        );
    }

    #[test]
    fn what_an_encoding_cannot_hold_is_named_and_what_is_no_text_is_none() {
        let view = TextView::new(b"caf\xe9\n").unwrap();
        assert!(view.encoding().unwrap().contains("windows-125"));
        let problem = view.replaced("\u{4f60}").unwrap_err();
        assert!(problem.contains("\u{4f60} (U+4F60)"), "{problem}");
        assert!(TextView::new(b"\x7fELF\0\xff\xfe").is_none());
        // Half a pair of surrogates.
        assert!(TextView::new(b"\xff\xfe\x3d\xd8").is_none());
        // A private character that is there already would become a byte.
        assert!(TextView::new("\u{f7ff}\u{e9}\u{e9}".as_bytes()).unwrap().encoding().is_none());
        assert!(TextView::new(b"\xef\x9f\xbf\xc3\xa9\xc3\xa9\xff").is_none());
    }

    #[test]
    fn a_new_content_takes_the_files_style() {
        let view = TextView::new(b"\xef\xbb\xbfa\r\nb\r\n").unwrap();
        assert_eq!(view.replaced("x\ny\n").unwrap(), b"\xef\xbb\xbfx\r\ny\r\n");
        assert_eq!(view.replaced("\u{feff}x\r\n").unwrap(), b"\xef\xbb\xbfx\r\n");
        assert_eq!(view.line_of(2), 2);
    }
}
