//! The walk over tree-sitter's tree.

use std::ops::ControlFlow;

use tree_sitter::{Node, ParseOptions, ParseState, Parser, Tree};

use super::{
    Assignment, Connector, Parsed, PlainCommand, Redirect, RedirectOp, TooComplex, Word,
    word::has_brace_expansion,
};

/// Commands above this length always go to a person (the reference's number).
pub const MAX_COMMAND_CHARS: usize = 10_000;
/// Deepest tree that is walked; ordinary commands stay under 12.
const MAX_DEPTH: usize = 48;
/// Most commands in one text; each is matched against every rule.
const MAX_COMMANDS: usize = 64;
/// Most openings of any bracket, so that the parser itself is never sent down a hole.
const MAX_BRACKETS: usize = 200;
/// Most quotes; the parser takes them in more than linear time.
const MAX_QUOTES: usize = 500;
/// Most here-documents: they are not understood anyway, and thousands of them are slow to parse.
const MAX_HEREDOCS: usize = 8;
/// How often the parser may report progress before it is stopped. It reports about every 100
/// operations; the longest honest text of 10,000 characters took under 400 reports.
const MAX_PROGRESS_REPORTS: usize = 4_000;

/// Words that begin control flow where the grammar did not say so.
const KEYWORDS: [&str; 21] = [
    "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "in",
    "select", "function", "coproc", "{", "}", "[[", "]]", "!",
];

/// Builtins that set variables by rules of their own, arithmetic included.
const DECLARATIONS: [&str; 5] = ["declare", "typeset", "local", "readonly", "let"];

/// Refuses a program's name that the shell takes for something else.
pub(super) fn check_program(program: &str, at: usize) -> Result<(), TooComplex> {
    if is_keyword(program) {
        return Err(complex("control flow", at));
    }
    if DECLARATIONS.contains(&program) {
        return Err(complex("a declaration", at));
    }
    Ok(())
}

/// Whether the shell may take the word for one of its own.
pub(super) fn is_keyword(word: &str) -> bool {
    KEYWORDS.contains(&word)
}

/// Parses `source`. Never panics and never recurses deeper than [`MAX_DEPTH`].
pub fn parse(source: &str) -> Parsed {
    match try_parse(source) {
        Ok(commands) => Parsed::Simple(commands),
        Err(reason) => Parsed::TooComplex(reason),
    }
}

fn complex(what: impl Into<String>, at: usize) -> TooComplex {
    TooComplex { what: what.into(), at }
}

fn try_parse(source: &str) -> Result<Vec<PlainCommand>, TooComplex> {
    check_text(source)?;
    let tree = tree(source)?;
    check_kinds(&tree)?;
    let mut walk =
        Walk { source, commands: Vec::new(), connector: Connector::Start, depth: 0, negated: false };
    walk.statements(tree.root_node())?;
    super::lexer::confirm(source, &walk.commands)?;
    Ok(walk.commands)
}

/// Refuses what the shell and the grammar are known to read differently, and what is too long.
fn check_text(source: &str) -> Result<(), TooComplex> {
    if source.len() > MAX_COMMAND_CHARS && source.chars().count() > MAX_COMMAND_CHARS {
        return Err(complex(format!("more than {MAX_COMMAND_CHARS} characters"), 0));
    }
    let (mut n_brackets, mut n_quotes) = (0, 0);
    if source.matches("<<").count() > MAX_HEREDOCS {
        return Err(complex("a here-document", 0));
    }
    for (at, c) in source.char_indices() {
        match c {
            '\n' | '\t' => {}
            '\r' => return Err(complex("a carriage return, which the shell takes as text", at)),
            c if c.is_control() => return Err(complex("a control character", at)),
            c if !c.is_ascii() && c.is_whitespace() => {
                return Err(complex("white space that the shell takes as text", at));
            }
            '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' => {
                return Err(complex("an invisible character", at));
            }
            '(' | '{' | '[' | '`' => n_brackets += 1,
            '\'' | '"' => n_quotes += 1,
            _ => {}
        }
        if n_brackets > MAX_BRACKETS || n_quotes > MAX_QUOTES {
            return Err(complex("too many brackets or quotes", at));
        }
    }
    Ok(())
}

fn tree(source: &str) -> Result<Tree, TooComplex> {
    let mut parser = Parser::new();
    parser
        .set_language(&tree_sitter_bash::LANGUAGE.into())
        .map_err(|_| complex("a grammar that does not load", 0))?;
    let mut n_reports = 0;
    let mut progress = |_: &ParseState| {
        n_reports += 1;
        if n_reports > MAX_PROGRESS_REPORTS { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let masked = masked(source);
    let bytes = masked.as_slice();
    let options = ParseOptions::new().progress_callback(&mut progress);
    parser
        .parse_with_options(&mut |at, _| bytes.get(at..).unwrap_or_default(), None, Some(options))
        .ok_or_else(|| complex("a text that takes too long to parse", 0))
}

/// The text as the parser sees it: each byte beyond ASCII is a `%`, so places stay the same. To the shell
/// such characters are parts of words and never of names, as `%` is. The grammar's scanner hands them to
/// `isdigit`, which reads outside its table: `{\u{10ffff}` ended the process (tree-sitter-bash 0.25.1).
fn masked(source: &str) -> Vec<u8> {
    source.bytes().map(|byte| if byte.is_ascii() { byte } else { b'%' }).collect()
}

/// Visits every node without recursion; after it, the tree is known to be shallow and of known kinds.
fn check_kinds(tree: &Tree) -> Result<(), TooComplex> {
    let mut cursor = tree.walk();
    let mut depth = 0;
    loop {
        let node = cursor.node();
        if node.is_error() || node.is_missing() {
            return Err(complex("a text that does not parse", node.start_byte()));
        }
        if node.is_named()
            && let Some(what) = refused(node.kind())
        {
            return Err(complex(what, node.start_byte()));
        }
        if cursor.goto_first_child() {
            depth += 1;
            if depth > MAX_DEPTH {
                return Err(complex("too deep a nesting", node.start_byte()));
            }
            continue;
        }
        while !cursor.goto_next_sibling() {
            if !cursor.goto_parent() {
                return Ok(());
            }
            depth -= 1;
        }
    }
}

/// `None` for the kinds that are understood.
fn refused(kind: &str) -> Option<String> {
    Some(match kind {
        "program"
        | "list"
        | "pipeline"
        | "command"
        | "command_name"
        | "redirected_statement"
        | "file_redirect"
        | "file_descriptor"
        | "variable_assignment"
        | "variable_assignments"
        | "variable_name"
        | "word"
        | "number"
        | "string"
        | "string_content"
        | "raw_string"
        | "ansi_c_string"
        | "concatenation"
        | "simple_expansion"
        | "expansion"
        | "special_variable_name"
        | "negated_command"
        | "subshell"
        | "compound_statement"
        | "declaration_command"
        | "unset_command"
        | "comment" => return None,
        "command_substitution" => "a command substitution".into(),
        "process_substitution" => "a process substitution".into(),
        "heredoc_redirect" | "heredoc_body" | "heredoc_start" | "herestring_redirect" => {
            "a here-document".into()
        }
        "arithmetic_expansion" => "an arithmetic expansion".into(),
        "test_command" => "a test expression".into(),
        "brace_expression" => "a brace expansion".into(),
        "function_definition" => "a function definition".into(),
        "if_statement" | "for_statement" | "c_style_for_statement" | "while_statement" | "case_statement" => {
            "control flow".into()
        }
        other => format!("a construct that is not checked ({})", other.replace('_', " ")),
    })
}

struct Walk<'a> {
    source: &'a str,
    commands: Vec<PlainCommand>,
    connector: Connector,
    depth: usize,
    negated: bool,
}

impl Walk<'_> {
    /// Program, list, pipeline, group: commands and the operators between them, in source order.
    fn statements(&mut self, node: Node<'_>) -> Result<(), TooComplex> {
        for child in children(node) {
            match child.kind() {
                "&&" => self.connector = Connector::And,
                "||" => self.connector = Connector::Or,
                "|" | "|&" => self.connector = Connector::Pipe,
                ";" | "\n" => self.separate(),
                "&" => {
                    if let Some(last) = self.commands.last_mut() {
                        last.background = true;
                    }
                    self.separate();
                }
                "(" | "{" => self.depth += 1,
                ")" | "}" => {
                    self.depth = self.depth.saturating_sub(1);
                    self.separate();
                }
                "!" | "comment" => {}
                _ => self.statement(child)?,
            }
        }
        Ok(())
    }

    fn separate(&mut self) {
        if !self.commands.is_empty() && self.connector == Connector::Start {
            self.connector = Connector::Next;
        }
    }

    fn statement(&mut self, node: Node<'_>) -> Result<(), TooComplex> {
        // Two statements with only a newline between them have no operator node.
        if !self.commands.is_empty() && self.connector == Connector::Start {
            self.connector = Connector::Next;
        }
        match node.kind() {
            "negated_command" => {
                let around = std::mem::replace(&mut self.negated, true);
                let walked = self.statements(node);
                self.negated = around;
                walked
            }
            "program" | "list" | "pipeline" | "subshell" | "compound_statement" => self.statements(node),
            "redirected_statement" => self.redirected(node),
            "command" => {
                let command = self.command(node)?;
                self.push(command, node)
            }
            "variable_assignment" | "variable_assignments" => {
                let mut command = PlainCommand::default();
                self.assignments(node, &mut command)?;
                self.push(command, node)
            }
            "declaration_command" | "unset_command" => {
                let command = self.declaration(node)?;
                self.push(command, node)
            }
            other => Err(complex(format!("a construct that is not checked ({other})"), node.start_byte())),
        }
    }

    fn push(&mut self, mut command: PlainCommand, node: Node<'_>) -> Result<(), TooComplex> {
        if self.commands.len() == MAX_COMMANDS {
            return Err(complex(format!("more than {MAX_COMMANDS} commands"), node.start_byte()));
        }
        command.after = self.connector;
        command.depth = self.depth;
        command.negated = self.negated;
        self.connector = Connector::Start;
        self.commands.push(command);
        Ok(())
    }

    /// The grammar hangs a redirection on the whole list before it; the shell gives it to the last
    /// command, and so do we.
    fn redirected(&mut self, node: Node<'_>) -> Result<(), TooComplex> {
        let before = self.commands.len();
        let mut trailing = PlainCommand::default();
        for child in children(node) {
            if child.kind() == "file_redirect" {
                self.redirect(child, &mut trailing)?;
            } else {
                self.statement(child)?;
            }
        }
        if self.commands.len() == before {
            return self.push(trailing, node);
        }
        if let Some(last) = self.commands.last_mut() {
            last.redirects.append(&mut trailing.redirects);
            last.argv.append(&mut trailing.argv);
        }
        Ok(())
    }

    fn command(&self, node: Node<'_>) -> Result<PlainCommand, TooComplex> {
        let mut command = PlainCommand::default();
        let mut end = node.start_byte();
        for child in children(node) {
            self.gap(end, child.start_byte())?;
            end = child.end_byte();
            match child.kind() {
                "variable_assignment" if command.argv.is_empty() => self.assignments(child, &mut command)?,
                "command_name" => {
                    let inner = child.child(0).ok_or_else(|| complex("an empty name", child.start_byte()))?;
                    let name = self.word(inner)?;
                    if name.glob || name.tilde {
                        return Err(complex("a program name that is expanded", child.start_byte()));
                    }
                    match name.text() {
                        None => return Err(complex("a program name that is expanded", child.start_byte())),
                        Some(text) => check_program(text, child.start_byte())?,
                    }
                    command.argv.push(name);
                }
                "file_redirect" => self.redirect(child, &mut command)?,
                _ => command.argv.push(self.word(child)?),
            }
        }
        Ok(command)
    }

    /// Between two words stands white space or a line continuation and nothing else: the grammar
    /// skips an escaped blank there, the shell does not.
    fn gap(&self, from: usize, to: usize) -> Result<(), TooComplex> {
        let text = self.source.get(from..to).unwrap_or_default();
        let blanks = text.replace("\\\n", "");
        // A continuation with no blank beside it joins two words, which the grammar takes for two.
        let joins = blanks.is_empty() && !text.is_empty();
        if joins || !blanks.chars().all(|c| matches!(c, ' ' | '\t')) {
            return Err(complex("text the parser skips", from));
        }
        Ok(())
    }

    fn assignments(&self, node: Node<'_>, command: &mut PlainCommand) -> Result<(), TooComplex> {
        if node.kind() == "variable_assignments" {
            return children(node).into_iter().try_for_each(|child| self.assignments(child, command));
        }
        let mut name = None;
        let mut value = Word::default();
        for child in children(node) {
            match child.kind() {
                "variable_name" => name = Some(self.text(child).to_owned()),
                "=" => {}
                "+=" | "subscript" | "array" => {
                    return Err(complex("an assignment that is not plain", child.start_byte()));
                }
                _ => value = self.word(child)?,
            }
        }
        let name = name.ok_or_else(|| complex("an assignment without a name", node.start_byte()))?;
        command.assignments.push(Assignment { name, value });
        Ok(())
    }

    /// `export A=b C`, `unset A`: kept as a command, with its assignments beside it.
    fn declaration(&self, node: Node<'_>) -> Result<PlainCommand, TooComplex> {
        let mut command = PlainCommand::default();
        for child in children(node) {
            match child.kind() {
                "export" | "unset" => command.argv.push(Word::literal(child.kind())),
                "variable_assignment" => {
                    self.assignments(child, &mut command)?;
                    let mut word = Word::default();
                    if let Some(assignment) = command.assignments.last() {
                        word.push_text(&assignment.name);
                        word.push_text("=");
                        match assignment.value.text() {
                            Some(text) => word.push_text(text),
                            None => word.push_unknown(),
                        }
                    }
                    command.argv.push(word);
                }
                "variable_name" => command.argv.push(Word::literal(self.text(child))),
                "word" | "number" | "string" | "raw_string" | "concatenation" => {
                    command.argv.push(self.word(child)?);
                }
                other => return Err(complex(format!("`{other}`"), child.start_byte())),
            }
        }
        Ok(command)
    }

    /// The grammar takes words that follow the target as further targets; the shell takes them as
    /// arguments.
    fn redirect(&self, node: Node<'_>, command: &mut PlainCommand) -> Result<(), TooComplex> {
        let mut op = None;
        let mut target = None;
        let mut end = None;
        for child in children(node) {
            if let Some(end) = end {
                self.gap(end, child.start_byte())?;
            }
            end = Some(child.end_byte());
            match child.kind() {
                "file_descriptor" => {}
                "<" => op = Some(RedirectOp::Read),
                ">" | ">>" | ">|" | "&>" | "&>>" => op = Some(RedirectOp::Write),
                ">&" | "<&" => op = Some(RedirectOp::Duplicate),
                ">&-" | "<&-" => {
                    op = Some(RedirectOp::Duplicate);
                    target = Some(Word::literal("-"));
                }
                _ if !child.is_named() => {
                    return Err(complex(format!("a redirection `{}`", child.kind()), child.start_byte()));
                }
                _ if target.is_none() => target = Some(self.word(child)?),
                _ => command.argv.push(self.word(child)?),
            }
        }
        let (Some(mut op), Some(target)) = (op, target) else {
            return Err(complex("a redirection that is not checked", node.start_byte()));
        };
        // `>& file` writes both streams to a file.
        if op == RedirectOp::Duplicate && !is_descriptor(&target) {
            op = RedirectOp::Write;
        }
        command.redirects.push(Redirect { op, target });
        Ok(())
    }

    fn word(&self, node: Node<'_>) -> Result<Word, TooComplex> {
        let mut word = Word::default();
        self.extend_word(node, &mut word)?;
        Ok(word)
    }

    fn extend_word(&self, node: Node<'_>, word: &mut Word) -> Result<(), TooComplex> {
        let at = node.start_byte();
        let text = self.text(node);
        let refuse = |what: &'static str| complex(what, at);
        match node.kind() {
            "word" | "number" | "variable_name" => word.push_unquoted(text).map_err(refuse),
            "raw_string" => {
                word.push_text(inside(text, "'", "'").ok_or_else(|| refuse("an unbalanced quote"))?);
                Ok(())
            }
            "ansi_c_string" => {
                let inner = inside(text, "$'", "'").ok_or_else(|| refuse("an unbalanced quote"))?;
                word.push_ansi_c(inner).map_err(refuse)
            }
            "string" => self.string(node, word),
            "simple_expansion" => {
                word.push_unknown();
                Ok(())
            }
            // `${NAME}` only: the operators of the others run code or change the value.
            "expansion" => {
                let name = inside(text, "${", "}").unwrap_or_default();
                if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                    return Err(refuse("an expansion with an operator"));
                }
                word.push_unknown();
                Ok(())
            }
            "concatenation" => self.concatenation(node, word),
            other => Err(complex(format!("a word that is not checked ({other})"), at)),
        }
    }

    fn concatenation(&self, node: Node<'_>, word: &mut Word) -> Result<(), TooComplex> {
        if has_brace_expansion(self.text(node)) {
            return Err(complex("a brace expansion", node.start_byte()));
        }
        let mut end = node.start_byte();
        for child in children(node) {
            if child.start_byte() != end {
                return Err(complex("text the parser skips", end));
            }
            end = child.end_byte();
            self.extend_word(child, word)?;
        }
        Ok(())
    }

    /// Double quotes: what is not an expansion node is text, whatever the grammar calls it.
    fn string(&self, node: Node<'_>, word: &mut Word) -> Result<(), TooComplex> {
        let at = node.start_byte();
        let unbalanced = || complex("an unbalanced quote", at);
        inside(self.text(node), "\"", "\"").ok_or_else(unbalanced)?;
        let last = node.end_byte() - 1;
        let mut from = at + 1;
        for child in children(node) {
            if !matches!(child.kind(), "simple_expansion" | "expansion") {
                continue;
            }
            let text = self.source.get(from..child.start_byte()).ok_or_else(unbalanced)?;
            word.push_double_quoted(text).map_err(|what| complex(what, from))?;
            self.extend_word(child, word)?;
            from = child.end_byte();
        }
        let text = self.source.get(from..last).ok_or_else(unbalanced)?;
        word.push_double_quoted(text).map_err(|what| complex(what, from))
    }

    fn text(&self, node: Node<'_>) -> &str {
        self.source.get(node.byte_range()).unwrap_or_default()
    }
}

fn children(node: Node<'_>) -> Vec<Node<'_>> {
    let mut cursor = node.walk();
    node.children(&mut cursor).collect()
}

fn inside<'a>(text: &'a str, open: &str, close: &str) -> Option<&'a str> {
    text.strip_prefix(open)?.strip_suffix(close)
}

fn is_descriptor(word: &Word) -> bool {
    word.text()
        .is_some_and(|text| text == "-" || (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())))
}
