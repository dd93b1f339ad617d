//! Keys in what is shown while it comes into being: words of a model piece by piece, and the last lines of a command.
//! A key that comes in two pieces has its form in neither, so what may be the beginning of one waits for the rest.

use std::sync::LazyLock;

use regex::Regex;
use swarm_protocol::frame::Live;

use super::Masker;

/// Bytes that wait at most. A word this long is no key; of a private key's block the rest is left out.
const MOST_HELD: usize = 4 * 1024;
/// A shorter unfinished word at the end of a tail is shown: no form of a key matches so little.
const SHORT_WORD: usize = 8;

/// What may go on as a key behind white space.
static UNFINISHED: LazyLock<Regex> = LazyLock::new(|| {
    let form = r#"(?i)(?:-{1,5}BEGIN[A-Z0-9 -]*|(?:authorization|api[_-]?key|aws_?secret_?access_?key)[\\"'\s:=]*(?:(?:bearer|basic|token)\s*)?\S*)\z"#;
    Regex::new(form).expect("a test compiles it")
});

static BLOCK: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----").expect("a test compiles it")
});

static BLOCK_END: LazyLock<Regex> =
    LazyLock::new(|| Regex::new("-----END [A-Z0-9 ]*-----").expect("a test compiles it"));

/// Masks live news of one agent, in their order.
#[derive(Debug, Default)]
pub struct LiveMasker {
    masker: Masker,
    held: String,
    is_thinking: bool,
    /// What comes belongs to a private key whose beginning is gone already.
    in_block: bool,
}

impl LiveMasker {
    /// Masks what this one finds.
    pub fn new(masker: Masker) -> Self {
        Self { masker, ..Self::default() }
    }

    /// What may be shown now.
    pub fn shown(&mut self, live: Live) -> Vec<Live> {
        let Live::TextDelta { text, thinking } = live else {
            let mut shown: Vec<Live> = self.rest().into_iter().collect();
            shown.extend(self.masker.masked(live));
            return shown;
        };
        let mut shown = Vec::new();
        if thinking != self.is_thinking {
            shown.extend(self.rest());
            self.is_thinking = thinking;
        }
        self.held.push_str(&text);
        shown.extend(self.delta(self.finished()));
        if self.held.len() > MOST_HELD {
            let is_open = self.in_block || last_block(&self.held).is_some_and(|block| block.end.is_none());
            shown.extend(self.rest());
            self.in_block = is_open;
        }
        shown
    }

    /// No more words follow what came: all of it may be shown.
    pub fn rest(&mut self) -> Option<Live> {
        let rest = self.delta(self.held.len());
        self.in_block = false;
        rest
    }

    /// How much of what is held no later word can make a key of.
    fn finished(&self) -> usize {
        if self.in_block {
            return BLOCK_END.find(&self.held).map_or(0, |end| end.end());
        }
        let word = before_word(&self.held);
        let unfinished = UNFINISHED.find(&self.held);
        let unfinished = unfinished.map_or(word, |found| before_word(&self.held[..found.start()]));
        let finished = word.min(unfinished);
        match last_block(&self.held) {
            // Not in the middle of one.
            Some(block) if finished > block.start => block.end.map_or(block.start, |end| end.max(finished)),
            _ => finished,
        }
    }

    fn delta(&mut self, n_bytes: usize) -> Option<Live> {
        let rest = self.held.split_off(n_bytes);
        let text = std::mem::replace(&mut self.held, rest);
        if text.is_empty() {
            return None;
        }
        if std::mem::take(&mut self.in_block) {
            return None;
        }
        let text = self.masker.mask(&text).into_owned();
        Some(Live::TextDelta { text, thinking: self.is_thinking })
    }
}

/// Where the word at the end of a text begins. Keys are ASCII; scripts without spaces need not wait.
fn before_word(text: &str) -> usize {
    text.trim_end_matches(|char: char| char.is_ascii_graphic()).len()
}

/// A private key in a text.
struct KeyBlock {
    start: usize,
    /// Behind it, when all of it is there.
    end: Option<usize>,
}

fn last_block(text: &str) -> Option<KeyBlock> {
    let last = BLOCK.find_iter(text).last()?;
    let end = BLOCK_END.find_at(text, last.end()).map(|end| end.end());
    Some(KeyBlock { start: last.start(), end })
}

/// The last `most_bytes` of a text that may go on, without keys, from a line's or a word's beginning to where a word
/// ends for sure.
#[must_use]
pub fn tail(masker: &Masker, text: &str, most_bytes: usize) -> String {
    // A word at the end may be the first half of a key.
    let word = before_word(text);
    let text = if text.len() - word > SHORT_WORD { &text[..word] } else { text };
    let masked = masker.mask(text);
    let start = masked.ceil_char_boundary(masked.len().saturating_sub(most_bytes));
    if start == 0 {
        return masked.into_owned();
    }
    let tail = &masked[start..];
    let begin = tail.find('\n').or_else(|| tail.find(char::is_whitespace));
    begin.map_or_else(String::new, |at| tail[at..].trim_start_matches('\n').to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::{MARK, tests::letters},
        *,
    };

    fn token() -> String {
        format!("ghp_{}", letters(36))
    }

    fn text_of(shown: &[Live]) -> String {
        let text = |live: &Live| match live {
            Live::TextDelta { text, .. } => text.clone(),
            other => panic!("no words: {other:?}"),
        };
        shown.iter().map(text).collect()
    }

    fn delta(text: &str) -> Live {
        Live::TextDelta { text: text.to_owned(), thinking: false }
    }

    /// All that is shown of a text that comes in these pieces.
    fn in_pieces(masker: &mut LiveMasker, pieces: &[&str]) -> String {
        let mut shown: Vec<Live> = pieces.iter().flat_map(|piece| masker.shown(delta(piece))).collect();
        shown.extend(masker.rest());
        text_of(&shown)
    }

    #[test]
    fn words_are_shown_as_they_come_but_for_the_last() {
        let mut masker = LiveMasker::default();
        assert_eq!(text_of(&masker.shown(delta("one tw"))), "one ");
        assert_eq!(text_of(&masker.shown(delta("o three"))), "two ");
        assert_eq!(text_of(&masker.shown(delta("\n你好，世界"))), "three\n你好，世界");
        assert_eq!(masker.shown(delta("last")), []);
        let ended = Live::Activity { text: "x".to_owned(), context_tokens: None, context_window: None };
        let shown = masker.shown(ended.clone());
        assert_eq!(shown, [delta("last"), ended]);
        assert_eq!(masker.rest(), None);
        // Thinking and words are not one text.
        masker.shown(Live::TextDelta { text: "thought".to_owned(), thinking: true });
        assert_eq!(
            masker.shown(delta("said ")),
            [Live::TextDelta { text: "thought".to_owned(), thinking: true }, delta("said ")]
        );
    }

    #[test]
    fn a_word_without_an_end_and_a_block_without_an_end_are_bounded() {
        let mut masker = LiveMasker::default();
        let long = "x".repeat(3 * MOST_HELD);
        assert_eq!(in_pieces(&mut masker, &[&long[..MOST_HELD + 1], "y", " z"]).len(), MOST_HELD + 4);
        let line = format!("{}\n", letters(64));
        let mut pieces = vec!["a -----BEGIN RSA PRIVATE KEY-----\n"];
        pieces.extend(std::iter::repeat_n(line.as_str(), 3 * MOST_HELD / 65));
        pieces.extend(["-----END RSA PRIVATE KEY-----\n", "behind"]);
        let shown = in_pieces(&mut masker, &pieces);
        assert!(shown.starts_with(&format!("a {MARK}private key]")) && shown.ends_with("behind"), "{shown}");
        assert!(!shown.contains(&line[..20]), "{shown}");
    }

    #[test]
    fn a_tail_begins_and_ends_with_whole_words() {
        let masker = Masker::default();
        let key = token();
        assert_eq!(tail(&masker, "short", 100), "short");
        assert_eq!(tail(&masker, &format!("a {}", &key[..20]), 100), "a ");
        assert_eq!(tail(&masker, &format!("a {key}\n"), 100), format!("a {MARK}github token]\n"));
        // However it is cut, nothing of the key is left.
        let text = format!("first line\n{key} behind\nlast line\n");
        for most in 0..text.len() + 20 {
            let tail = tail(&masker, &text, most);
            assert!(
                tail.len() <= most && !tail.contains(&key[4..12]) && !tail.contains(&key[30..]),
                "{tail}"
            );
        }
        let block = format!("-----BEGIN PRIVATE KEY-----\n{}", format!("{}\n", letters(64)).repeat(80));
        assert!(!tail(&masker, &block, 1000).contains(&letters(20)));
        assert_eq!(tail(&masker, "Password: ", 100), "Password: ");
    }

    proptest! {
        /// However a text is cut into pieces, what is shown is the text masked as a whole.
        #[test]
        fn pieces_are_masked_as_the_whole(cuts in proptest::collection::vec(0usize..1000, 0..12)) {
            let block = format!("-----BEGIN EC PRIVATE KEY-----\n{}\n{}\n-----END EC PRIVATE KEY-----", letters(64), letters(40));
            let key = token();
            let text = format!(
                "Use {key} or https://{key}@host/x\nAuthorization: Bearer {}\n{block}\n你好{key}。 \
                 \"x-api-key\": \"{}\" and done -----BEGIN nothing",
                letters(40),
                letters(30),
            );
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| text.floor_char_boundary(cut % (text.len() + 1))).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
            let shown = in_pieces(&mut LiveMasker::default(), &pieces);
            prop_assert_eq!(shown, Masker::default().mask(&text));
        }
    }
}
