//! One word of a command after quote removal.

/// A word of a command line. Expansions stay unknown: their value is the shell's affair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Word {
    pieces: Vec<Piece>,
    /// An unquoted `*`, `?` or `[` stands in it, so it may become several file names.
    pub glob: bool,
    /// It begins with an unquoted `~`.
    pub tilde: bool,
}

/// A part of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    /// The value of a variable: anything, of any length.
    Unknown,
}

impl Word {
    /// A word of known text.
    pub fn literal(text: impl Into<String>) -> Self {
        let mut word = Self::default();
        word.push_text(&text.into());
        word
    }

    /// A word of which nothing is known.
    pub fn unknown() -> Self {
        Self { pieces: vec![Piece::Unknown], ..Self::default() }
    }

    /// The whole text, or `None` when a part is known only to the shell.
    pub fn text(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [] => Some(""),
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    pub fn is_known(&self) -> bool {
        self.text().is_some()
    }

    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Whether the word may come out as an option (`-x`).
    pub fn may_be_option(&self) -> bool {
        match self.pieces.first() {
            Some(Piece::Text(text)) => text.starts_with('-'),
            Some(Piece::Unknown) => true,
            None => false,
        }
    }

    pub(super) fn push_text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.pieces.last_mut() {
            Some(Piece::Text(last)) => last.push_str(text),
            _ => self.pieces.push(Piece::Text(text.to_owned())),
        }
    }

    pub(super) fn push_unknown(&mut self) {
        self.pieces.push(Piece::Unknown);
    }

    /// Appends unquoted source text, undoing backslashes. `Err` names what cannot be decoded.
    pub(super) fn push_unquoted(&mut self, source: &str) -> Result<(), &'static str> {
        let mut chars = source.chars();
        let mut out = String::with_capacity(source.len());
        let mut first = self.pieces.is_empty();
        while let Some(c) = chars.next() {
            match c {
                '\\' => match chars.next() {
                    Some('\n') => {}
                    Some(escaped) => out.push(escaped),
                    None => return Err("a trailing backslash"),
                },
                '*' | '?' | '[' => {
                    self.glob = true;
                    out.push(c);
                }
                '~' if first => {
                    self.tilde = true;
                    out.push(c);
                }
                '$' | '`' | '"' | '\'' | '(' | ')' | '<' | '>' | '|' | '&' | ';' => {
                    return Err("a character the parser and the shell may read differently");
                }
                _ => out.push(c),
            }
            first = false;
        }
        self.push_text(&out);
        Ok(())
    }

    /// Appends the text between double quotes (without expansions).
    pub(super) fn push_double_quoted(&mut self, source: &str) -> Result<(), &'static str> {
        let mut chars = source.chars().peekable();
        let mut out = String::with_capacity(source.len());
        while let Some(c) = chars.next() {
            match c {
                '\\' => match chars.peek() {
                    Some('\n') => {
                        chars.next();
                    }
                    Some(&next @ ('$' | '`' | '"' | '\\')) => {
                        chars.next();
                        out.push(next);
                    }
                    _ => out.push('\\'),
                },
                '`' => return Err("a command substitution"),
                '$' => match chars.peek() {
                    Some(next) if next.is_alphanumeric() || "_{([@*#?-$!'\"".contains(*next) => {
                        return Err("an expansion");
                    }
                    _ => out.push('$'),
                },
                '"' => return Err("an unbalanced quote"),
                _ => out.push(c),
            }
        }
        self.push_text(&out);
        Ok(())
    }

    /// Appends the text inside `$'…'`.
    pub(super) fn push_ansi_c(&mut self, source: &str) -> Result<(), &'static str> {
        let mut bytes = Vec::with_capacity(source.len());
        let mut chars = source.chars().peekable();
        while let Some(c) = chars.next() {
            if c != '\\' {
                bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
            let escape = chars.next().ok_or("a trailing backslash")?;
            let mut digits = |radix: u32, most: usize| {
                let mut value = None;
                for _ in 0..most {
                    let Some(digit) = chars.peek().and_then(|c| c.to_digit(radix)) else { break };
                    chars.next();
                    value = Some(value.unwrap_or(0) * radix + digit);
                }
                value
            };
            match escape {
                'n' => bytes.push(b'\n'),
                't' => bytes.push(b'\t'),
                '\\' | '\'' | '"' | '?' => bytes.push(escape as u8),
                'x' => match digits(16, 2).and_then(|value| u8::try_from(value).ok()) {
                    Some(0) | None => return Err("an escape that cannot be decoded"),
                    Some(value) => bytes.push(value),
                },
                'u' | 'U' => {
                    let value = digits(16, if escape == 'u' { 4 } else { 8 });
                    let decoded = value.and_then(char::from_u32).filter(|c| *c != '\0');
                    let decoded = decoded.ok_or("an escape that cannot be decoded")?;
                    bytes.extend_from_slice(decoded.encode_utf8(&mut [0; 4]).as_bytes());
                }
                _ => return Err("an escape that cannot be decoded"),
            }
        }
        let text = String::from_utf8(bytes).map_err(|_| "text that is not UTF-8")?;
        self.push_text(&text);
        Ok(())
    }
}

/// `{a,b}` and `{1..3}` outside quotes. `{}` and `@{u}` are text to the shell.
pub(super) fn has_brace_expansion(source: &str) -> bool {
    let mut quote = None;
    let mut escaped = false;
    let mut open = 0_usize;
    let mut previous = ' ';
    for c in source.chars() {
        if std::mem::take(&mut escaped) {
            previous = ' ';
            continue;
        }
        match (quote, c) {
            (None | Some('"' | '$'), '\\') => escaped = true,
            // `$'…'`, in which a backslash keeps a quote from closing it.
            (None, '\'') if previous == '$' => quote = Some('$'),
            (Some('$'), '\'') => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (Some(open_quote), c) if c == open_quote && c != '$' => quote = None,
            (None, '{') if previous != '$' => open += 1,
            (None, '}') => open = open.saturating_sub(1),
            (None, ',') if open > 0 => return true,
            (None, '.') if open > 0 && previous == '.' => return true,
            _ => {}
        }
        previous = c;
    }
    false
}
