//! What a key means while somebody follows. A permission prompt never takes a key that was meant for
//! something else: keys count half a second after the prompt was drawn and after the last stray key, Enter and
//! Space never answer, `A` wants a second `A`, and a command that does not fit must have been seen. Pure.

use swarm_protocol::{
    PermissionRequestId, Timestamp,
    api::AnswerPermission,
    permission::{Decision, Scope},
};

/// How long a prompt must have stood, and the keyboard rested, before a key answers.
const QUIET_MILLIS: u64 = 500;

/// A key, as far as anything here asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Character(char),
    Enter,
    Backspace,
    KillLine,
    Escape,
    Other,
}

/// What is to be done about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing.
    Nothing,
    /// The picture changed.
    Redraw,
    /// Leave; the work goes on.
    Leave,
    /// Show the whole request.
    View,
    /// Answer it.
    Answer(PermissionRequestId, AnswerPermission),
}

/// The prompt that is on the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Prompt {
    id: PermissionRequestId,
    drawn_at: Timestamp,
    has_rule: bool,
    /// The command stands on the screen whole, or was shown by `v`.
    seen: bool,
    /// One `A` was typed.
    always_once: bool,
}

/// The keyboard's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    prompt: Option<Prompt>,
    last_stray: Option<Timestamp>,
    /// Words being typed.
    input: Option<String>,
}

impl Keys {
    /// The prompt on the screen now. True when it is another than before: what was typed before is for nobody.
    pub(crate) fn show(&mut self, ask: Option<(&PermissionRequestId, bool, bool)>, now: Timestamp) -> bool {
        match (ask, &mut self.prompt) {
            (None, None) => false,
            (None, Some(_)) => {
                self.prompt = None;
                self.input = None;
                true
            }
            (Some((id, _, fits)), Some(prompt)) if prompt.id == *id => {
                prompt.seen |= fits;
                false
            }
            (Some((id, has_rule, fits)), _) => {
                self.prompt =
                    Some(Prompt { id: id.clone(), drawn_at: now, has_rule, seen: fits, always_once: false });
                self.input = None;
                true
            }
        }
    }

    /// Words being typed, for the picture.
    pub(crate) fn input(&self) -> Option<&str> {
        self.input.as_deref()
    }

    /// Whether one `A` was typed.
    pub(crate) fn always_once(&self) -> bool {
        self.prompt.as_ref().is_some_and(|prompt| prompt.always_once)
    }

    /// Whether the whole command was on the screen.
    pub(crate) fn seen(&self) -> bool {
        self.prompt.as_ref().is_some_and(|prompt| prompt.seen)
    }

    /// ^C: true when it only cleared words.
    pub(crate) fn interrupt(&mut self) -> bool {
        self.input.take().is_some()
    }

    /// Keys that came together: more than one is a paste, which is meant for nothing here but words.
    pub(crate) fn typed(&mut self, keys: &[Key], now: Timestamp) -> Action {
        if self.input.is_some() {
            let mut action = Action::Nothing;
            for key in keys {
                action = match self.words(*key) {
                    Action::Nothing => action,
                    other => other,
                };
            }
            return action;
        }
        match keys {
            [] => Action::Nothing,
            [key] => self.key(*key, now),
            _ => {
                self.stray(now);
                Action::Nothing
            }
        }
    }

    fn stray(&mut self, now: Timestamp) {
        self.last_stray = Some(now);
        if let Some(prompt) = &mut self.prompt {
            prompt.always_once = false;
        }
    }

    fn key(&mut self, key: Key, now: Timestamp) -> Action {
        let Some(prompt) = &mut self.prompt else {
            return if key == Key::Character('q') { Action::Leave } else { Action::Nothing };
        };
        let rested = self.last_stray.is_none_or(|at| now.millis_since(at) >= QUIET_MILLIS);
        if now.millis_since(prompt.drawn_at) < QUIET_MILLIS || !rested {
            self.stray(now);
            return Action::Nothing;
        }
        let allow = |scope| AnswerPermission {
            decision: Decision::Allow,
            scope,
            reason: None,
            stop: false,
            args_hash: None,
        };
        let deny = |stop| AnswerPermission {
            decision: Decision::Deny,
            scope: Scope::Once,
            reason: None,
            stop,
            args_hash: None,
        };
        let id = prompt.id.clone();
        if key != Key::Character('A') {
            prompt.always_once = false;
        }
        match key {
            Key::Character('q') => Action::Leave,
            Key::Character('v') => {
                prompt.seen = true;
                Action::View
            }
            Key::Character('x') => Action::Answer(id, deny(false)),
            Key::Character('X') => Action::Answer(id, deny(true)),
            Key::Character('m') => {
                self.input = Some(String::new());
                Action::Redraw
            }
            // What was not seen whole cannot be allowed.
            Key::Character('a' | 's' | 'A') if !prompt.seen => Action::Nothing,
            Key::Character('a') => Action::Answer(id, allow(Scope::Once)),
            Key::Character('s') if prompt.has_rule => Action::Answer(id, allow(Scope::Session)),
            Key::Character('A') if prompt.has_rule && prompt.always_once => {
                Action::Answer(id, allow(Scope::Always))
            }
            Key::Character('A') if prompt.has_rule => {
                prompt.always_once = true;
                Action::Redraw
            }
            Key::Character(_) | Key::Enter | Key::Backspace | Key::KillLine | Key::Escape | Key::Other => {
                self.stray(now);
                Action::Redraw
            }
        }
    }

    fn words(&mut self, key: Key) -> Action {
        let Some(input) = &mut self.input else { return Action::Nothing };
        match key {
            Key::Character(character) => input.push(character),
            Key::Backspace => {
                input.pop();
            }
            Key::KillLine => input.clear(),
            Key::Escape => self.input = None,
            Key::Enter if input.trim().is_empty() => {}
            Key::Enter => {
                let reason = Some(input.trim().to_owned());
                self.input = None;
                if let Some(prompt) = &self.prompt {
                    let answer = AnswerPermission {
                        decision: Decision::Deny,
                        scope: Scope::Once,
                        reason,
                        stop: false,
                        args_hash: None,
                    };
                    return Action::Answer(prompt.id.clone(), answer);
                }
            }
            Key::Other => return Action::Nothing,
        }
        Action::Redraw
    }
}

/// Turns bytes of a terminal into keys; keeps what is not whole yet.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    rest: Vec<u8>,
}

impl Decoder {
    /// The keys in these bytes.
    pub(crate) fn decode(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.rest.extend_from_slice(bytes);
        let mut keys = Vec::new();
        let bytes = std::mem::take(&mut self.rest);
        let mut at = 0;
        while at < bytes.len() {
            match bytes[at] {
                // An arrow, a function key, Alt with a letter: nothing here asks for them.
                0x1b if at + 1 < bytes.len() => {
                    at += escape_length(&bytes[at..]);
                    keys.push(Key::Other);
                    continue;
                }
                0x1b => keys.push(Key::Escape),
                b'\r' | b'\n' => keys.push(Key::Enter),
                0x7f | 0x08 => keys.push(Key::Backspace),
                0x15 => keys.push(Key::KillLine),
                0..0x20 => keys.push(Key::Other),
                first => {
                    let length = match first {
                        0..0x80 => 1,
                        0xc0..0xe0 => 2,
                        0xe0..0xf0 => 3,
                        0xf0..0xf8 => 4,
                        // In the middle of a character: lost.
                        _ => {
                            at += 1;
                            continue;
                        }
                    };
                    let Some(whole) = bytes.get(at..at + length) else {
                        self.rest = bytes[at..].to_vec();
                        break;
                    };
                    keys.extend(
                        std::str::from_utf8(whole)
                            .ok()
                            .and_then(|text| text.chars().next())
                            .map(Key::Character),
                    );
                    at += length;
                    continue;
                }
            }
            at += 1;
        }
        keys
    }
}

/// Length of the escape sequence at the start.
fn escape_length(bytes: &[u8]) -> usize {
    match bytes.get(1) {
        Some(b'[') => bytes
            .iter()
            .skip(2)
            .position(|byte| (0x40..=0x7e).contains(byte))
            .map_or(bytes.len(), |end| end + 3),
        Some(b'O') => bytes.len().min(3),
        _ => bytes.len().min(2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn prompted(fits: bool) -> Keys {
        let mut keys = Keys::default();
        assert!(keys.show(Some((&"req-3f2".parse().unwrap(), true, fits)), at(0)));
        keys
    }

    fn press(keys: &mut Keys, character: char, millis: i64) -> Action {
        keys.typed(&[Key::Character(character)], at(millis))
    }

    fn answer(action: &Action) -> Option<(Decision, Scope, bool)> {
        match action {
            Action::Answer(_, answer) => Some((answer.decision, answer.scope, answer.stop)),
            _ => None,
        }
    }

    #[test]
    fn keys_within_half_a_second_never_answer() {
        let mut keys = prompted(true);
        assert_eq!(answer(&press(&mut keys, 'a', 499)), None);
        // And each one starts the rest again.
        assert_eq!(answer(&press(&mut keys, 'a', 900)), None);
        assert_eq!(answer(&press(&mut keys, 'a', 1_400)), Some((Decision::Allow, Scope::Once, false)));
    }

    #[test]
    fn enter_and_space_never_answer() {
        let mut keys = prompted(true);
        for key in [Key::Enter, Key::Character(' '), Key::Escape, Key::Character('y')] {
            assert_eq!(answer(&keys.typed(&[key], at(10_000))), None);
            keys.last_stray = None;
        }
    }

    #[test]
    fn always_wants_a_second_time() {
        let mut keys = prompted(true);
        assert_eq!(press(&mut keys, 'A', 600), Action::Redraw);
        assert_eq!(answer(&press(&mut keys, 'A', 650)), Some((Decision::Allow, Scope::Always, false)));
        let mut keys = prompted(true);
        press(&mut keys, 'A', 600);
        press(&mut keys, 'v', 650);
        assert_eq!(press(&mut keys, 'A', 700), Action::Redraw);
    }

    #[test]
    fn what_does_not_fit_must_be_seen_before_it_is_allowed() {
        let mut keys = prompted(false);
        for character in ['a', 's', 'A', 'A'] {
            assert_eq!(press(&mut keys, character, 600), Action::Nothing);
        }
        assert_eq!(answer(&press(&mut keys, 'x', 600)), Some((Decision::Deny, Scope::Once, false)));
        assert_eq!(press(&mut keys, 'v', 600), Action::View);
        assert!(answer(&press(&mut keys, 'a', 600)).is_some());
    }

    #[test]
    fn a_paste_answers_nothing() {
        let mut keys = prompted(true);
        assert_eq!(keys.typed(&[Key::Character('a'), Key::Character('b')], at(10_000)), Action::Nothing);
    }

    #[test]
    fn words_go_with_a_denial() {
        let mut keys = prompted(true);
        press(&mut keys, 'm', 600);
        let typed: Vec<Key> =
            "use the vendored one".chars().map(Key::Character).chain([Key::Enter]).collect();
        match keys.typed(&typed, at(700)) {
            Action::Answer(id, answer) => {
                assert_eq!(id.as_str(), "req-3f2");
                assert_eq!(answer.reason.as_deref(), Some("use the vendored one"));
                assert_eq!(answer.decision, Decision::Deny);
            }
            other => panic!("{other:?}"),
        }
        press(&mut keys, 'm', 1_300);
        assert!(keys.interrupt());
        assert!(!keys.interrupt());
    }

    #[test]
    fn a_new_prompt_starts_anew() {
        let mut keys = prompted(true);
        assert!(!keys.show(Some((&"req-3f2".parse().unwrap(), true, true)), at(100)));
        assert!(keys.show(Some((&"req-999".parse().unwrap(), true, true)), at(10_000)));
        assert_eq!(answer(&press(&mut keys, 'a', 10_400)), None);
        assert!(keys.show(None, at(10_500)));
        assert_eq!(press(&mut keys, 'q', 10_600), Action::Leave);
    }

    #[test]
    fn bytes_become_keys() {
        let mut decoder = Decoder::default();
        assert_eq!(
            decoder.decode(b"a\r\x7f\x15"),
            [Key::Character('a'), Key::Enter, Key::Backspace, Key::KillLine]
        );
        assert_eq!(decoder.decode(b"\x1b[A"), [Key::Other]);
        assert_eq!(decoder.decode(b"\x1b"), [Key::Escape]);
        assert_eq!(decoder.decode(&"é".as_bytes()[..1]), []);
        assert_eq!(decoder.decode(&"é".as_bytes()[1..]), [Key::Character('é')]);
    }
}
