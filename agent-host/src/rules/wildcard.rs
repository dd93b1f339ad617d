//! Patterns with `*` over command texts in which some parts are known only to the shell.

use crate::bash::{Piece, Word};

/// A blank inside one word. A literal blank of a pattern does not match it, so `git "status x"` is
/// not `git status x`.
pub(crate) const INNER_BLANK: char = '\u{f8ff}';
/// The value of an expansion.
const UNKNOWN: char = '\u{f8fe}';

/// How a pattern relates to a text with unknown parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Match {
    No,
    /// For some values of the unknown parts.
    Maybe,
    Yes,
}

/// A command line as one text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text(Vec<char>);

impl Text {
    pub(crate) fn of_words(words: &[Word]) -> Self {
        let mut out = Vec::new();
        for (index, word) in words.iter().enumerate() {
            if index > 0 {
                out.push(' ');
            }
            push_word(&mut out, word);
        }
        Self(out)
    }

    pub(crate) fn has_unknown(&self) -> bool {
        self.0.contains(&UNKNOWN)
    }
}

fn push_word(out: &mut Vec<char>, word: &Word) {
    for piece in word.pieces() {
        match piece {
            Piece::Unknown => out.push(UNKNOWN),
            Piece::Text(text) => out.extend(text.chars().map(|c| match c {
                ' ' | INNER_BLANK | UNKNOWN => INNER_BLANK,
                c => c,
            })),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Char(char),
    Star,
}

/// A compiled pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wildcard {
    tokens: Vec<Token>,
}

impl Wildcard {
    /// `*` stands for any text, `\*` for itself.
    pub(crate) fn new(pattern: &str) -> Self {
        let mut tokens = Vec::new();
        let mut chars = pattern.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '*' if tokens.last() == Some(&Token::Star) => {}
                '*' => tokens.push(Token::Star),
                '\\' if matches!(chars.peek(), Some('*' | '\\')) => {
                    tokens.extend(chars.next().map(Token::Char));
                }
                c => tokens.push(Token::Char(c)),
            }
        }
        Self { tokens }
    }

    pub(crate) fn has_star(&self) -> bool {
        self.tokens.contains(&Token::Star)
    }

    /// The text before the first `*`.
    pub(crate) fn literal_start(&self) -> impl Iterator<Item = char> {
        self.tokens.iter().map_while(|token| match token {
            Token::Char(c) => Some(*c),
            Token::Star => None,
        })
    }

    pub(crate) fn with_star_appended(&self, text: &str) -> Self {
        let mut tokens = self.tokens.clone();
        tokens.extend(text.chars().map(Token::Char));
        tokens.push(Token::Star);
        Self { tokens }
    }

    pub(crate) fn matches(&self, text: &Text) -> Match {
        if self.surely_matches(&text.0) {
            Match::Yes
        } else if text.has_unknown() && self.may_match(&text.0) {
            Match::Maybe
        } else {
            Match::No
        }
    }

    /// Greedy with one point to return to: linear for ordinary patterns.
    fn surely_matches(&self, text: &[char]) -> bool {
        let (mut at, mut token) = (0, 0);
        let mut back: Option<(usize, usize)> = None;
        while at < text.len() {
            match self.tokens.get(token) {
                Some(Token::Star) => {
                    back = Some((token + 1, at));
                    token += 1;
                }
                Some(Token::Char(c)) if *c == text[at] && text[at] != UNKNOWN => {
                    token += 1;
                    at += 1;
                }
                _ => match back {
                    Some((after_star, from)) => {
                        token = after_star;
                        at = from + 1;
                        back = Some((after_star, from + 1));
                    }
                    None => return false,
                },
            }
        }
        self.tokens[token..].iter().all(|token| *token == Token::Star)
    }

    /// Whether some value of the unknown parts makes it match; a table of two rows.
    fn may_match(&self, text: &[char]) -> bool {
        let n = self.tokens.len();
        let mut row = vec![false; n + 1];
        row[0] = true;
        close_over_stars(&self.tokens, &mut row);
        for &c in text {
            let mut next = vec![false; n + 1];
            for (index, reached) in row.iter().enumerate() {
                if !reached {
                    continue;
                }
                if c == UNKNOWN {
                    // It may be empty, or swallow any number of tokens.
                    next[index..].fill(true);
                    break;
                }
                match self.tokens.get(index) {
                    Some(Token::Star) => next[index] = true,
                    Some(Token::Char(token)) if *token == c || (c == INNER_BLANK && *token == ' ') => {
                        next[index + 1] = true;
                    }
                    _ => {}
                }
            }
            close_over_stars(&self.tokens, &mut next);
            row = next;
        }
        row[n]
    }
}

fn close_over_stars(tokens: &[Token], row: &mut [bool]) {
    for (index, token) in tokens.iter().enumerate() {
        if *token == Token::Star && row[index] {
            row[index + 1] = true;
        }
    }
}

/// `*` in `pattern` stands for any text.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    Wildcard::new(pattern).surely_matches(&text.chars().collect::<Vec<_>>())
}

/// Whether the word may become a text that the pattern matches.
pub(crate) fn may_match(pattern: &str, word: &Word) -> bool {
    let mut text = Vec::new();
    push_word(&mut text, word);
    Wildcard::new(pattern).may_match(&text)
}
