//! The coordinator's words: whole lines as they stream, each word once, whatever was lost or begun again.

/// Words that stream in, and the same words once the turn is committed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Words {
    streams: bool,
    /// Everything streamed since the last committed turn.
    streamed: String,
    /// The end of it that is no whole line yet.
    half: String,
}

impl Words {
    /// `streams` says whether words are wanted before their turn is committed.
    pub(crate) fn new(streams: bool) -> Self {
        Self { streams, ..Self::default() }
    }

    /// The line that is being written.
    pub(crate) fn half(&self) -> &str {
        &self.half
    }

    /// Words came; whole lines are given out.
    pub(crate) fn delta(&mut self, text: &str) -> Vec<String> {
        if !self.streams {
            return Vec::new();
        }
        self.streamed.push_str(text);
        self.half.push_str(text);
        let mut lines = Vec::new();
        while let Some(end) = self.half.find('\n') {
            let rest = self.half.split_off(end + 1);
            self.half.truncate(end);
            lines.push(std::mem::replace(&mut self.half, rest));
        }
        lines
    }

    /// The turn is committed: what of its words was not given out yet.
    pub(crate) fn commit(&mut self, text: &str) -> Vec<String> {
        let rest = match rest_after(&self.streamed, text) {
            Some(rest) => rest,
            // Another try than the one we heard: what was said stands, then it is said whole.
            None => {
                let mut lines = self.flush();
                lines.extend(text.trim_end().lines().map(str::to_owned));
                return lines;
            }
        };
        self.half.push_str(rest);
        self.flush()
    }

    /// Everything left.
    pub(crate) fn flush(&mut self) -> Vec<String> {
        self.streamed.clear();
        let half = std::mem::take(&mut self.half);
        half.trim_end().lines().map(str::to_owned).collect()
    }
}

/// What of `whole` comes after `begun`, white space aside (blocks are joined by line breaks that never
/// stream); none when `whole` does not begin so.
fn rest_after<'a>(begun: &str, whole: &'a str) -> Option<&'a str> {
    let mut expected = begun.chars().filter(|character| !character.is_whitespace());
    let mut next = expected.next();
    let mut rest = whole;
    for (at, character) in whole.char_indices() {
        let Some(wanted) = next else { break };
        if character.is_whitespace() {
            continue;
        }
        if character != wanted {
            return None;
        }
        next = expected.next();
        rest = &whole[at + character.len_utf8()..];
    }
    if next.is_some() {
        return None;
    }
    // Space that streamed already is not said again.
    let trailing = begun.len() - begun.trim_end().len();
    let repeated = rest.len() - rest.trim_start().len();
    Some(&rest[trailing.min(repeated)..])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn blocks_joined_by_a_line_break_are_the_same_words() {
        let mut words = Words::new(true);
        assert_eq!(words.delta("One."), Vec::<String>::new());
        assert_eq!(words.delta("Two"), Vec::<String>::new());
        assert_eq!(words.commit("One.\nTwo and more\nlast\n"), ["One.Two and more", "last"]);
    }

    #[test]
    fn another_try_is_said_whole() {
        let mut words = Words::new(true);
        words.delta("I will do");
        assert_eq!(words.commit("Let us see\nnow"), ["I will do", "Let us see", "now"]);
    }

    #[test]
    fn without_streaming_a_turn_is_said_when_it_is_committed() {
        let mut words = Words::new(false);
        assert_eq!(words.delta("x\ny"), Vec::<String>::new());
        assert_eq!(words.commit("x\ny"), ["x", "y"]);
        assert_eq!(words.half(), "");
    }

    proptest! {
        #[test]
        fn however_it_is_cut_each_word_comes_once(text in "[a-c\n é]{0,30}", cuts in prop::collection::vec(0usize..30, 0..5), heard in 0usize..30) {
            let characters: Vec<char> = text.chars().collect();
            let heard = heard.min(characters.len());
            let mut words = Words::new(true);
            let mut lines = Vec::new();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(heard)).chain([0, heard]).collect();
            cuts.sort_unstable();
            for pair in cuts.windows(2) {
                lines.extend(words.delta(&characters[pair[0]..pair[1]].iter().collect::<String>()));
            }
            lines.extend(words.commit(&text));
            let squeeze = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            prop_assert_eq!(squeeze(&lines.concat()), squeeze(&text));
            let said = lines.join("\n");
            prop_assert_eq!(said.trim_end(), text.trim_end());
        }
    }
}
