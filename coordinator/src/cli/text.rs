//! Text on a grid of cells: foreign text made harmless, cut, filled up and wrapped by cell width. Pure.

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use super::error::{CliError, Result};

/// What stands where text was cut.
const CUT: &str = "..";

/// Cells a text takes.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// Foreign text with everything that could steer a terminal or hide itself as a visible escape: C0, C1,
/// bidirectional controls, zero-width characters. One line: line breaks and tabs become spaces.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' | '\r' => shown.push(' '),
            hidden if is_hidden(hidden) => {
                let code = u32::from(hidden);
                if code <= 0xff {
                    shown.push_str(&format!("\\x{code:02x}"));
                } else {
                    shown.push_str(&format!("\\u{{{code:x}}}"));
                }
            }
            other => shown.push(other),
        }
    }
    shown
}

/// As [`visible`], line by line; tabs become four spaces.
pub(crate) fn visible_lines(text: &str) -> impl Iterator<Item = String> + '_ {
    text.lines().map(|line| visible(&line.replace('\t', "    ")))
}

/// As [`visible`], but colours (SGR sequences) stay; the line ends with a reset if it had one.
pub(crate) fn visible_with_colour(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    let mut coloured = false;
    while let Some(at) = rest.find('\u{1b}') {
        let (before, from) = rest.split_at(at);
        shown.push_str(&visible(before));
        match sgr_length(from) {
            Some(length) => {
                shown.push_str(&from[..length]);
                coloured = true;
                rest = &from[length..];
            }
            None => {
                shown.push_str("\\x1b");
                rest = &from[1..];
            }
        }
    }
    shown.push_str(&visible(rest));
    if coloured {
        shown.push_str("\u{1b}[0m");
    }
    shown
}

/// Length of the SGR sequence at the start of a text that begins with ESC.
fn sgr_length(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\u{1b}[")?;
    let end =
        parameters.find(|character: char| !character.is_ascii_digit() && !matches!(character, ';' | ':'))?;
    parameters[end..].starts_with('m').then_some(2 + end + 1)
}

fn is_hidden(character: char) -> bool {
    matches!(character,
        '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        | '\u{ad}' | '\u{61c}' | '\u{180e}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// At most `cells` cells of a text, whole graphemes, with a mark where something is missing.
pub(crate) fn cut(text: &str, cells: usize) -> String {
    if width(text) <= cells {
        return text.to_owned();
    }
    let mark = &CUT[..CUT.len().min(cells)];
    let mut kept = take(text, cells - mark.len());
    kept.push_str(mark);
    kept
}

/// As [`cut`], but the end is kept: what matters of a path.
pub(crate) fn cut_start(text: &str, cells: usize) -> String {
    if width(text) <= cells {
        return text.to_owned();
    }
    let mark = &CUT[..CUT.len().min(cells)];
    let mut kept: Vec<&str> = Vec::new();
    let mut used = mark.len();
    for grapheme in text.graphemes(true).rev() {
        used += width(grapheme);
        if used > cells {
            break;
        }
        kept.push(grapheme);
    }
    kept.push(mark);
    kept.reverse();
    kept.concat()
}

fn take(text: &str, cells: usize) -> String {
    let mut kept = String::new();
    for grapheme in text.graphemes(true) {
        // The width of a whole text can differ from the sum of its parts (ligatures, joined emoji).
        let before = kept.len();
        kept.push_str(grapheme);
        if width(&kept) > cells {
            kept.truncate(before);
            break;
        }
    }
    kept
}

/// Exactly `cells` cells: cut, or filled up at the end.
pub(crate) fn left(text: &str, cells: usize) -> String {
    let mut text = cut(text, cells);
    let missing = cells.saturating_sub(width(&text));
    text.extend(std::iter::repeat_n(' ', missing));
    text
}

/// Exactly `cells` cells: cut, or filled up at the start.
pub(crate) fn right(text: &str, cells: usize) -> String {
    let text = cut(text, cells);
    let missing = cells.saturating_sub(width(&text));
    format!("{}{text}", " ".repeat(missing))
}

/// A text in lines of at most `cells` cells; words longer than that are broken. At least one line.
pub(crate) fn wrap(text: &str, cells: usize) -> Vec<String> {
    let options = textwrap::Options::new(cells.max(1)).word_separator(textwrap::WordSeparator::AsciiSpace);
    let mut lines: Vec<String> =
        textwrap::wrap(text, options).into_iter().map(std::borrow::Cow::into_owned).collect();
    if lines.is_empty() {
        lines.push(String::new());
    }
    // A grapheme wider than the line is left whole by the library.
    lines.iter_mut().for_each(|line| {
        if width(line) > cells {
            *line = cut(line, cells);
        }
    });
    lines
}

/// A path as text, or the error that names it.
pub(crate) fn utf8<'a>(what: &str, path: &'a std::path::Path) -> Result<&'a str> {
    path.to_str().ok_or_else(|| {
        CliError::new("not_utf8", format!("{what} is not valid UTF-8: {}", path.display()))
            .cause("paths are sent to the server and shown to models as text")
            .hint("rename that directory, or work from a clone elsewhere")
    })
}

/// A path as people write it: `~` for the home, made harmless.
pub(crate) fn path(path: &std::path::Path, user_home: &std::path::Path) -> String {
    let shown = match path.strip_prefix(user_home) {
        Ok(rest) if rest.as_os_str().is_empty() => "~".to_owned(),
        Ok(rest) => format!("~/{}", rest.to_string_lossy()),
        Err(_) => path.to_string_lossy().into_owned(),
    };
    visible(&shown)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn foreign_text_cannot_steer() {
        assert_eq!(
            visible("a\u{1b}[31mb\u{202e}c\u{9b}d\u{200b}\te"),
            "a\\x1b[31mb\\u{202e}c\\x9bd\\u{200b} e"
        );
        assert_eq!(visible("naïve 漢字"), "naïve 漢字");
    }

    #[test]
    fn colours_stay_in_logs_and_are_reset() {
        assert_eq!(visible_with_colour("\u{1b}[1;31mred\u{1b}[2J"), "\u{1b}[1;31mred\\x1b[2J\u{1b}[0m");
        assert_eq!(visible_with_colour("plain"), "plain");
    }

    #[test]
    fn cutting_shows_that_something_is_missing() {
        assert_eq!(cut("Investigate", 7), "Inves..");
        assert_eq!(cut("漢字漢字", 5), "漢..");
        assert_eq!(cut_start("src/auth/validate.py", 12), "..alidate.py");
        assert_eq!(cut("abc", 1), ".");
        assert_eq!(left("ab", 4), "ab  ");
        assert_eq!(right("ab", 4), "  ab");
    }

    #[test]
    fn paths_begin_at_the_home() {
        let home = std::path::Path::new("/home/ada");
        assert_eq!(path(std::path::Path::new("/home/ada/src/x"), home), "~/src/x");
        assert_eq!(path(std::path::Path::new("/srv/x"), home), "/srv/x");
    }

    proptest! {
        #[test]
        fn nothing_is_wider_than_asked_for(text in "[a-z漢😀e\u{301}👩\u{200d}🚀 ]{0,40}", cells in 1usize..30) {
            let text = visible(&text);
            prop_assert!(width(&cut(&text, cells)) <= cells);
            prop_assert!(width(&cut_start(&text, cells)) <= cells);
            prop_assert_eq!(width(&left(&text, cells)), cells);
            prop_assert_eq!(width(&right(&text, cells)), cells);
            for line in wrap(&text, cells) {
                prop_assert!(width(&line) <= cells, "{:?}", line);
            }
        }

        #[test]
        fn visible_text_has_no_control(text in any::<String>()) {
            prop_assert!(!visible(&text).chars().any(|character| character.is_control()));
        }
    }
}
