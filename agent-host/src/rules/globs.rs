//! Whether two path patterns can name the same path.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Char(char),
    /// `?`, or a bracket expression, taken widely.
    One,
    /// Any run without a slash.
    Star,
    /// Any run.
    Deep,
}

fn tokens(pattern: &str) -> Vec<Token> {
    let mut out = Vec::new();
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '*' if chars.peek() == Some(&'*') => {
                chars.next();
                // `**/` also stands for nothing.
                if chars.peek() == Some(&'/') {
                    chars.next();
                }
                out.push(Token::Deep);
            }
            '*' => out.push(Token::Star),
            '?' => out.push(Token::One),
            '[' => {
                let mut rest = chars.clone();
                let closes = rest.by_ref().skip(1).any(|c| c == ']');
                if closes {
                    chars = rest;
                    out.push(Token::One);
                } else {
                    out.push(Token::Char('['));
                }
            }
            // Alternatives are taken widely.
            '{' => {
                for c in chars.by_ref() {
                    if c == '}' {
                        break;
                    }
                }
                out.push(Token::Deep);
            }
            '\\' => out.extend(chars.next().map(Token::Char)),
            c => out.push(Token::Char(c)),
        }
    }
    out
}

/// `shell` is a pattern as the shell expands it: its wildcards do not match a leading dot.
pub(crate) fn may_meet(shell: &str, rule: &str) -> bool {
    let (shell, rule) = (tokens(shell), tokens(rule));
    let width = rule.len() + 1;
    let mut seen = vec![false; (shell.len() + 1) * width];
    let mut open = vec![(0_usize, 0_usize)];
    while let Some((i, j)) = open.pop() {
        if std::mem::replace(&mut seen[i * width + j], true) {
            continue;
        }
        let (a, b) = (shell.get(i).copied(), rule.get(j).copied());
        if a.is_none() && b.is_none() {
            return true;
        }
        let at_name_start = j == 0 || matches!(rule[j - 1], Token::Char('/') | Token::Deep);
        let wild_takes = |c: char| c != '/' && !(c == '.' && at_name_start);
        if matches!(a, Some(Token::Star | Token::Deep)) {
            open.push((i + 1, j));
        }
        if matches!(b, Some(Token::Star | Token::Deep)) {
            open.push((i, j + 1));
        }
        match (a, b) {
            (Some(Token::Char(x)), Some(Token::Char(y))) if x == y => open.push((i + 1, j + 1)),
            (Some(Token::Char(x)), Some(Token::One)) if x != '/' => open.push((i + 1, j + 1)),
            (Some(Token::Char(x)), Some(Token::Star)) if x != '/' => open.push((i + 1, j)),
            (Some(Token::Char(_)), Some(Token::Deep)) => open.push((i + 1, j)),
            (Some(Token::One), Some(Token::Char(y))) if wild_takes(y) => open.push((i + 1, j + 1)),
            (Some(Token::One), Some(Token::One)) => open.push((i + 1, j + 1)),
            (Some(Token::One), Some(Token::Star | Token::Deep)) => open.push((i + 1, j)),
            (Some(Token::Star), Some(Token::Char(y))) if wild_takes(y) => open.push((i, j + 1)),
            (Some(Token::Star), Some(Token::One)) => open.push((i, j + 1)),
            (Some(Token::Deep), Some(Token::Char(_) | Token::One)) => open.push((i, j + 1)),
            _ => {}
        }
    }
    false
}
