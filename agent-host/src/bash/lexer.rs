//! A second reading of a command, by the shell's own rules for words and operators. The grammar takes some texts for
//! other words than the shell does (`''\rm f`, `\ ls`, `time A=1 x`): what the two do not read alike is not understood.
//!
//! It knows only what the walk over the tree accepts, and refuses the rest.

use super::{
    Assignment, PlainCommand, Redirect, RedirectOp, TooComplex, Word, parse::is_keyword,
    word::has_brace_expansion,
};

/// Where two readings part.
const DIFFERS: &str = "a text that the parser and the shell may read differently";
const TIMED: &str = "`time` in front of what is no plain command";

/// Whether `commands`, as the tree has them, are what the shell's rules say.
pub(super) fn confirm(source: &str, commands: &[PlainCommand]) -> Result<(), TooComplex> {
    let mut lexer = Lexer { source, at: 0, commands: Vec::new(), expects: Expects::Command };
    lexer.run()?;
    let same = |own: &PlainCommand, tree: &PlainCommand| {
        own.argv == tree.argv && own.assignments == tree.assignments && own.redirects == tree.redirects
    };
    let alike = lexer.commands.len() == commands.len()
        && lexer.commands.iter().zip(commands).all(|(own, tree)| same(own, tree));
    if alike { Ok(()) } else { Err(TooComplex { what: DIFFERS.to_owned(), at: 0 }) }
}

/// What may come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expects {
    /// A command begins.
    Command,
    /// A command has begun: words and redirections belong to it.
    More,
    /// The same behind the word `time`, where a command begins once more.
    Timed { has_option: bool },
    /// A group has ended: redirections and operators only.
    Operator,
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    commands: Vec<PlainCommand>,
    expects: Expects,
}

impl Lexer<'_> {
    fn refuse<T>(&self, what: &str) -> Result<T, TooComplex> {
        Err(TooComplex { what: what.to_owned(), at: self.at })
    }

    fn rest(&self) -> &str {
        self.source.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn takes(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        self.at += if found { text.len() } else { 0 };
        found
    }

    fn run(&mut self) -> Result<(), TooComplex> {
        loop {
            self.blanks()?;
            let Some(c) = self.peek() else { return Ok(()) };
            match c {
                '\n' | ';' | '&' | '|' | '(' | ')' | '<' | '>' => self.operator()?,
                _ => self.word_of_command()?,
            }
        }
    }

    /// Blanks, comments, and line continuations that join nothing.
    fn blanks(&mut self) -> Result<(), TooComplex> {
        let begin = self.at;
        loop {
            match self.peek() {
                Some(' ' | '\t') => self.at += 1,
                Some('#') => self.at += self.rest().find('\n').unwrap_or(self.rest().len()),
                Some('\\') if self.rest().starts_with("\\\n") => {
                    let blank = |c: Option<char>| c.is_none_or(|c| matches!(c, ' ' | '\t' | '\n'));
                    let before = self.source[..self.at].chars().next_back();
                    if !(blank(before) || self.at > begin || blank(self.rest().chars().nth(2))) {
                        return self.refuse("text the parser skips");
                    }
                    self.at += 2;
                }
                _ => return Ok(()),
            }
        }
    }

    fn operator(&mut self) -> Result<(), TooComplex> {
        for refused in [";;", ";&", "<<", "<>", "<(", ">(", "(("] {
            if self.rest().starts_with(refused) {
                return self.refuse("an operator that is not checked");
            }
        }
        for (text, op) in [
            ("&>>", RedirectOp::Write),
            ("&>", RedirectOp::Write),
            (">>", RedirectOp::Write),
            (">|", RedirectOp::Write),
            (">&", RedirectOp::Duplicate),
            ("<&", RedirectOp::Duplicate),
            (">", RedirectOp::Write),
            ("<", RedirectOp::Read),
        ] {
            if self.takes(text) {
                return self.redirect(op);
            }
        }
        if self.takes("(") {
            if self.expects == Expects::Command {
                return Ok(());
            }
            return self.refuse(DIFFERS);
        }
        if self.takes(")") {
            self.expects = Expects::Operator;
            return Ok(());
        }
        for text in ["&&", "||", "|&", "|", "&", ";", "\n"] {
            if self.takes(text) {
                self.expects = Expects::Command;
                return Ok(());
            }
        }
        self.refuse(DIFFERS)
    }

    fn redirect(&mut self, mut op: RedirectOp) -> Result<(), TooComplex> {
        if matches!(self.expects, Expects::Timed { .. }) {
            return self.refuse(TIMED);
        }
        self.blanks()?;
        let begin = self.at;
        let target = match op {
            RedirectOp::Duplicate if self.takes("-") => Word::literal("-"),
            _ => self.word()?,
        };
        if begin == self.at {
            return self.refuse("a redirection that is not checked");
        }
        let raw = &self.source[begin..self.at];
        let is_descriptor = raw == "-" || raw.bytes().all(|byte| byte.is_ascii_digit());
        if op == RedirectOp::Duplicate && !is_descriptor {
            // Bash expands this word twice.
            let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '/' | '-' | '~');
            if !raw.chars().all(plain) {
                return self.refuse("a redirection that is not checked");
            }
            op = RedirectOp::Write;
        }
        if self.expects == Expects::Command {
            self.commands.push(PlainCommand::default());
            self.expects = Expects::More;
        }
        match self.commands.last_mut() {
            Some(command) => command.redirects.push(Redirect { op, target }),
            None => return self.refuse(DIFFERS),
        }
        Ok(())
    }

    fn word_of_command(&mut self) -> Result<(), TooComplex> {
        let begin = self.at;
        let word = self.word()?;
        let raw = &self.source[begin..self.at];
        if begin == self.at || self.expects == Expects::Operator {
            return self.refuse(DIFFERS);
        }
        if matches!(self.peek(), Some('<' | '>')) {
            // `2>`: a descriptor, no word. `{name}>` sets a variable.
            if raw.bytes().all(|byte| byte.is_ascii_digit()) {
                return self.operator();
            }
            if raw.starts_with('{') {
                return self.refuse("a redirection that sets a variable");
            }
        }
        if self.expects == Expects::Command {
            match raw {
                "!" | "{" => return Ok(()),
                "}" => {
                    self.expects = Expects::Operator;
                    return Ok(());
                }
                _ => {}
            }
            self.commands.push(PlainCommand::default());
            self.expects = if raw == "time" { Expects::Timed { has_option: false } } else { Expects::More };
        } else if let Expects::Timed { has_option } = self.expects {
            // `time` is a word of the shell's own, behind which a command begins.
            let is_option = raw == "-p" && !has_option;
            let begins = !word.may_be_option() && raw != "time" && !is_keyword(raw);
            if !is_option && (!begins || assigned_name(raw).is_some()) {
                return self.refuse(TIMED);
            }
            self.expects = if is_option { Expects::Timed { has_option: true } } else { Expects::More };
        }
        let equals = assigned_name(raw);
        let assigned = match equals {
            Some(name) => Some(self.assignment(name, begin)?),
            None => None,
        };
        let Some(command) = self.commands.last_mut() else { return self.refuse(DIFFERS) };
        match assigned {
            Some(assignment) if command.argv.is_empty() => command.assignments.push(assignment),
            Some(assignment) if command.program() == Some("export") => {
                command.assignments.push(assignment);
                command.argv.push(word);
            }
            None if command.argv.is_empty() && has_subscript(raw) => {
                return self.refuse("an assignment that is not plain");
            }
            _ => command.argv.push(word),
        }
        Ok(())
    }

    /// The value behind `NAME=`, read once more.
    fn assignment(&self, name: &str, begin: usize) -> Result<Assignment, TooComplex> {
        let mut value = Lexer {
            source: &self.source[..self.at],
            at: begin + name.len() + 1,
            commands: Vec::new(),
            ..*self
        };
        Ok(Assignment { name: name.to_owned(), value: value.word()? })
    }

    /// One word up to a blank or an operator; nothing where none stands.
    fn word(&mut self) -> Result<Word, TooComplex> {
        let begin = self.at;
        let mut word = Word::default();
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>' | ')' => break,
                '(' if begin == self.at => break,
                // What follows it is looked at between words.
                '\\' if self.rest().starts_with("\\\n") => break,
                '(' | '`' => return self.refuse(DIFFERS),
                '\'' => {
                    let inner = self.closed_by('\'', 1)?;
                    word.push_text(&inner);
                }
                '"' => self.double_quoted(&mut word)?,
                '$' => self.dollar(&mut word)?,
                _ => {
                    let end = self.unquoted_end();
                    let text = self.source[self.at..end].to_owned();
                    word.push_unquoted(&text).or_else(|what| self.refuse(what))?;
                    self.at = end;
                }
            }
        }
        if has_brace_expansion(&self.source[begin..self.at]) {
            return self.refuse("a brace expansion");
        }
        Ok(word)
    }

    /// The text up to `quote`, from `skip` characters on. Steps over it.
    fn closed_by(&mut self, quote: char, skip: usize) -> Result<String, TooComplex> {
        let inner = &self.rest()[skip..];
        let Some(end) = inner.find(quote) else { return self.refuse("an unbalanced quote") };
        let inner = inner[..end].to_owned();
        self.at += skip + end + 1;
        Ok(inner)
    }

    /// Where plain characters and escaped ones end.
    fn unquoted_end(&self) -> usize {
        let mut chars = self.rest().char_indices();
        while let Some((offset, c)) = chars.next() {
            match c {
                ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')' | '\'' | '"' | '$' | '`' => {
                    return self.at + offset;
                }
                // A continuation would join what stands around it.
                '\\' if self.rest()[offset..].starts_with("\\\n") => return self.at + offset,
                '\\' => drop(chars.next()),
                _ => {}
            }
        }
        self.source.len()
    }

    fn dollar(&mut self, word: &mut Word) -> Result<(), TooComplex> {
        if self.rest().starts_with("$'") {
            let mut escaped = false;
            let inner = &self.rest()[2..];
            let end = inner.char_indices().find(|(_, c)| match (std::mem::take(&mut escaped), c) {
                (false, '\\') => {
                    escaped = true;
                    false
                }
                (false, '\'') => true,
                _ => false,
            });
            let Some((end, _)) = end else { return self.refuse("an unbalanced quote") };
            let inner = inner[..end].to_owned();
            word.push_ansi_c(&inner).or_else(|what| self.refuse(what))?;
            self.at += 2 + end + 1;
            return Ok(());
        }
        match expansion_len(self.rest()) {
            Some(len) => {
                self.at += len;
                word.push_unknown();
                Ok(())
            }
            None => self.refuse("an expansion"),
        }
    }

    fn double_quoted(&mut self, word: &mut Word) -> Result<(), TooComplex> {
        self.at += 1;
        let mut from = self.at;
        loop {
            let Some(c) = self.peek() else { return self.refuse("an unbalanced quote") };
            match c {
                '\\' => self.at += 1 + self.rest()[1..].chars().next().map_or(0, char::len_utf8),
                '"' | '$' => {
                    let len = if c == '$' { expansion_len(self.rest()) } else { None };
                    if c == '$' && len.is_none() {
                        self.at += 1;
                        continue;
                    }
                    let text = self.source[from..self.at].to_owned();
                    word.push_double_quoted(&text).or_else(|what| self.refuse(what))?;
                    self.at += len.unwrap_or(1);
                    from = self.at;
                    if len.is_none() {
                        return Ok(());
                    }
                    word.push_unknown();
                }
                c => self.at += c.len_utf8(),
            }
        }
    }
}

/// Length of `$NAME`, `${NAME}`, `$1` and the like; none for all other expansions.
fn expansion_len(text: &str) -> Option<usize> {
    let name =
        |text: &str| text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
    let rest = text.strip_prefix('$')?;
    let first = rest.chars().next()?;
    match first {
        '{' => {
            let len = name(&rest[1..]);
            (len > 0 && rest[1 + len..].starts_with('}')).then_some(1 + 1 + len + 1)
        }
        '0'..='9' | '@' | '*' | '#' | '?' | '-' | '$' | '!' => Some(2),
        c if c.is_ascii_alphabetic() || c == '_' => Some(1 + name(rest)),
        _ => None,
    }
}

/// The name in front of an unquoted `=`, if it is one.
pub(super) fn assigned_name(raw: &str) -> Option<&str> {
    let (name, _) = raw.split_once('=')?;
    let mut bytes = name.bytes();
    let begins = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    (begins && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')).then_some(name)
}

/// `a[0]=1`, `a+=1`
fn has_subscript(raw: &str) -> bool {
    let end = raw.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(raw.len());
    end > 0
        && !raw.as_bytes()[0].is_ascii_digit()
        && (raw[end..].starts_with('[') || raw[end..].starts_with("+="))
}
