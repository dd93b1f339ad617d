//! From the bytes of a command to text: UTF-8 where it can be, else a guess at the legacy encoding.

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{CoderResult, Decoder, Encoding, GBK, UTF_8};
use std::borrow::Cow;

/// Decodes a whole piece of output. Never fails; what fits nothing becomes U+FFFD.
pub(super) fn decode(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    if let Some((encoding, mark)) = Encoding::for_bom(bytes) {
        return encoding.decode_without_bom_handling(&bytes[mark..]).0;
    }
    match legacy_encoding(bytes) {
        Some(encoding) => encoding.decode_without_bom_handling(bytes).0,
        None => String::from_utf8_lossy(bytes),
    }
}

/// A guess at the encoding of bytes that are not UTF-8; none for what is no text, and for UTF-8 that is broken
/// in places.
pub(crate) fn legacy_encoding(bytes: &[u8]) -> Option<&'static Encoding> {
    if looks_like_utf8(bytes) || looks_binary(bytes) {
        return None;
    }
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
    detector.feed(bytes, true);
    let guess = detector.guess(None, Utf8Detection::Deny);
    // A few bytes are too little for statistics, but European text hardly ever has its letters in pairs.
    Some(if guess.is_single_byte() && all_pairs_of_gb2312(bytes) { GBK } else { guess })
}

/// Mostly UTF-8 with a few broken places, such as a character cut at an end.
fn looks_like_utf8(bytes: &[u8]) -> bool {
    let mut good = 0_usize;
    let mut bad = 0_usize;
    for chunk in bytes.utf8_chunks() {
        good += chunk.valid().chars().filter(|char| !char.is_ascii()).count();
        bad += usize::from(!chunk.invalid().is_empty());
    }
    let cut = std::str::from_utf8(bytes).is_err_and(|error| {
        // One lead byte alone may as well be a letter of Latin-1.
        error.error_len().is_none() && bytes.len() - error.valid_up_to() >= 2
    });
    cut || bad <= good
}

/// Text in a legacy encoding has no NUL and hardly any control characters.
fn looks_binary(bytes: &[u8]) -> bool {
    let control = |byte: &&u8| matches!(byte, 0..=6 | 14..=26 | 28..=31);
    bytes.contains(&0) || bytes.iter().filter(control).count() * 50 > bytes.len()
}

/// Whether the bytes beyond ASCII come in pairs within the characters of GB 2312.
fn all_pairs_of_gb2312(bytes: &[u8]) -> bool {
    let mut runs = bytes.split(u8::is_ascii).filter(|run| !run.is_empty());
    runs.all(|run| run.chunks(2).all(|pair| matches!(pair, [0xa1..=0xa9 | 0xb0..=0xf7, 0xa1..=0xfe])))
}

/// UTF-8 in pieces: a character cut between two reads comes whole with the second.
#[derive(Debug)]
pub(super) struct StreamDecoder(Decoder);

impl Default for StreamDecoder {
    fn default() -> Self {
        Self(UTF_8.new_decoder_without_bom_handling())
    }
}

impl StreamDecoder {
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len() + 8);
        loop {
            let (result, read, _) = self.0.decode_to_string(bytes, &mut text, false);
            bytes = &bytes[read..];
            match result {
                CoderResult::InputEmpty => return text,
                CoderResult::OutputFull => text.reserve(bytes.len() * 3 + 8),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], expected: &str) {
        assert_eq!(decode(bytes), expected, "{bytes:x?}");
    }

    #[test]
    fn utf8_and_legacy_encodings() {
        check("你好".as_bytes(), "你好");
        check(b"\xc4\xe3", "你");
        check(b"\xc4\xe3\xba\xc3\xca\xc0\xbd\xe7\n", "你好世界\n");
        check(b"caf\xe9 cr\xe8me\n", "café crème\n");
        check(b"\xff\xfeh\0i\0", "hi");
    }

    #[test]
    fn broken_utf8_stays_utf8() {
        check("plain 你好 \u{fffd}".as_bytes(), "plain 你好 \u{fffd}");
        check(b"\xe4\xbd\xa0\xe5\xa5", "你\u{fffd}");
        check(b"\xe4\xbd", "\u{fffd}");
        check(b"a\0\xff\xfe\x01", "a\0\u{fffd}\u{fffd}\u{1}");
    }

    #[test]
    fn a_character_cut_between_reads_is_whole() {
        let mut decoder = StreamDecoder::default();
        assert_eq!(decoder.push(b"a\xe4\xbd"), "a");
        assert_eq!(decoder.push(b"\xa0b"), "你b");
    }
}
