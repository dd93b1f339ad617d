//! The last words of an agent: what its end reports as its result.

use serde::{Deserialize, Serialize};

use super::{Origin, StopReason};
use crate::Message;

/// The last words of an agent, as a fold over its answers. An answer that was cut and taken up again is one text:
/// what was said before the cut is part of the result (spec 2.5).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastWords {
    text: String,
    /// The last answer was cut before its end, and called no tool: the next one goes on with it.
    is_cut: bool,
    is_from_earlier: bool,
}

impl LastWords {
    /// Takes the next answer.
    pub fn answer(&mut self, message: &Message, stop_reason: &StopReason) {
        let text = message.text();
        let has_words = !text.trim().is_empty();
        self.is_from_earlier = !has_words && !self.text.is_empty();
        if has_words && self.is_cut {
            self.text.push_str(&text);
        } else if has_words {
            self.text = text;
        }
        let calls = message.tool_uses().next().is_some();
        self.is_cut = !calls && (stop_reason.is_cut() || (self.is_cut && !has_words));
    }

    /// Takes a message to the agent: what answers a person is no rest of what was said before.
    pub fn heard(&mut self, origin: &Origin) {
        match origin {
            Origin::Prompt | Origin::Person { .. } | Origin::Coordinator | Origin::ToolResults => {
                self.is_cut = false
            }
            Origin::Notifications | Origin::Harness | Origin::Summary => {}
        }
    }

    /// The words; empty when there were none.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the last answer had no words, so that these are older.
    pub fn is_from_earlier(&self) -> bool {
        self.is_from_earlier
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Block;

    fn said(answers: &[(&str, StopReason)]) -> LastWords {
        let mut words = LastWords::default();
        for (text, stop) in answers {
            let content = match text.strip_prefix("call ") {
                Some(text) => vec![
                    Block::text(text),
                    Block::ToolUse {
                        id: "t1".parse().unwrap(),
                        name: "Read".to_owned(),
                        input: serde_json::json!({}),
                        provider_data: None,
                    },
                ],
                None => vec![Block::text(*text)],
            };
            words.answer(&Message::assistant(content), stop);
        }
        words
    }

    #[test]
    fn what_answers_a_person_is_no_rest_of_an_interrupted_answer() {
        let mut words = said(&[("half a sent", StopReason::Truncated)]);
        words.heard(&Origin::Harness);
        words.heard(&Origin::Person { message_id: None });
        words.answer(&Message::assistant(vec![Block::text("Yes.")]), &StopReason::EndTurn);
        assert_eq!(words.text(), "Yes.");
    }

    #[test]
    fn an_answer_that_was_cut_and_taken_up_again_is_one_text() {
        use StopReason::{EndTurn, MaxTokens, PauseTurn, ToolUse, Truncated};
        type Case<'a> = (&'a [(&'a str, StopReason)], &'a str, bool);
        let cases: [Case<'_>; 8] = [
            (&[("one", EndTurn), ("two", EndTurn)], "two", false),
            (&[("one ", MaxTokens), ("two", EndTurn)], "one two", false),
            (&[("one ", MaxTokens), ("two ", Truncated), ("three", PauseTurn)], "one two three", false),
            (&[("one ", MaxTokens), ("two", EndTurn), ("three", EndTurn)], "three", false),
            (&[("call one", MaxTokens), ("two", EndTurn)], "two", false),
            (&[("one", ToolUse), (" ", EndTurn)], "one", true),
            (&[("one ", MaxTokens), ("", MaxTokens), ("two", EndTurn)], "one two", false),
            (&[("", EndTurn)], "", false),
        ];
        for (answers, text, is_from_earlier) in cases {
            let words = said(answers);
            assert_eq!((words.text(), words.is_from_earlier()), (text, is_from_earlier), "{answers:?}");
        }
    }
}
