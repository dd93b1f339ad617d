//! The commands inside a command: what a wrapper, an interpreter or `find -exec` starts.

use super::{
    Assignment, Parsed, PlainCommand, TooComplex, Word, parse,
    parse::check_program,
    wrappers::{self, Wrapper},
};
use crate::dangerous::{Subcommand, subcommand};

/// How often a command may stand inside another; nobody writes five.
const MAX_NESTING: usize = 5;

/// One command as seen from outside or from inside a wrapper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    pub command: PlainCommand,
    pub kind: LayerKind,
}

/// What a layer counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerKind {
    /// The command as written.
    Outer,
    /// Behind a wrapper that changes nothing about what runs (`timeout 5 …`): an allow rule may
    /// match here.
    Stripped,
    /// Started by another program's argument (`sh -c`, `env`, `find -exec`): only refusals match here.
    Inner,
}

/// The command and everything it visibly starts, outermost first.
pub fn layers(command: &PlainCommand) -> Result<Vec<Layer>, TooComplex> {
    let mut found = vec![Layer { command: command.clone(), kind: LayerKind::Outer }];
    let mut next = 0;
    let mut nesting = vec![0];
    while next < found.len() {
        if nesting[next] > MAX_NESTING {
            return Err(too_complex("a command wrapped too often"));
        }
        let outer = found[next].clone();
        for (inner, transparent) in unwrap_once(&outer.command)? {
            let kind = match (outer.kind, transparent) {
                (LayerKind::Inner, _) | (_, false) => LayerKind::Inner,
                _ => LayerKind::Stripped,
            };
            found.push(Layer { command: inner, kind });
            nesting.push(nesting[next] + 1);
        }
        next += 1;
    }
    Ok(found)
}

fn too_complex(what: &str) -> TooComplex {
    TooComplex { what: what.to_owned(), at: 0 }
}

/// The commands directly inside, and whether the wrapper is one that may be stripped.
fn unwrap_once(command: &PlainCommand) -> Result<Vec<(PlainCommand, bool)>, TooComplex> {
    let Some(written) = command.program() else { return Ok(Vec::new()) };
    let program = base_name(written).to_owned();
    // `./timeout` is another program, whatever it is called.
    let is_plain = program == written;
    let args = command.argv.get(1..).unwrap_or_default();
    match program.as_str() {
        "sh" | "bash" | "dash" | "zsh" | "ksh" | "mksh" | "ash" | "rbash" | "fish" => script_of_shell(args),
        "eval" => script(without_dashes(args)).map(opaque),
        "trap" => match without_dashes(args) {
            [action, _, ..] => script(std::slice::from_ref(action)).map(opaque),
            _ => Ok(Vec::new()),
        },
        "find" | "gfind" | "fd" | "fdfind" => Ok(find_actions(command, args)),
        "command" if args.first().and_then(Word::text).is_some_and(prints_only) => Ok(Vec::new()),
        "export" => Ok(exported(command)),
        _ => {
            if let Some(wrapper) = wrappers::by_program(&program) {
                let mut found = unwrap_wrapper(command, &program, args, &wrapper)?;
                for (_, transparent) in &mut found {
                    *transparent &= is_plain;
                }
                return Ok(found);
            }
            let Subcommand::At(at) = subcommand(command) else { return Ok(Vec::new()) };
            let words: Vec<Option<&str>> = command.argv[at..].iter().map(Word::text).collect();
            match wrappers::by_subcommand(&program, &words) {
                Some((n_words, wrapper)) => {
                    unwrap_wrapper(command, &program, &command.argv[at + n_words..], &wrapper)
                }
                None => Ok(Vec::new()),
            }
        }
    }
}

/// `command -v`, also in a cluster.
fn prints_only(option: &str) -> bool {
    option.starts_with('-') && !option.starts_with("--") && option.contains(['v', 'V'])
}

fn without_dashes(args: &[Word]) -> &[Word] {
    match args.first().and_then(Word::text) {
        Some("--") => &args[1..],
        _ => args,
    }
}

/// `export A=b` behind a wrapper, or with its name in quotes: the grammar sees no assignment there.
fn exported(command: &PlainCommand) -> Vec<(PlainCommand, bool)> {
    let mut inner = PlainCommand { after: command.after, depth: command.depth, ..PlainCommand::default() };
    for word in command.argv.iter().skip(1) {
        let Some((name, value)) = word.text().and_then(|text| text.split_once('=')) else { continue };
        if !command.assignments.iter().any(|assignment| assignment.name == name) {
            inner.assignments.push(Assignment { name: name.to_owned(), value: Word::literal(value) });
        }
    }
    if inner.assignments.is_empty() { Vec::new() } else { vec![(inner, false)] }
}

fn opaque(commands: Vec<PlainCommand>) -> Vec<(PlainCommand, bool)> {
    commands.into_iter().map(|command| (command, false)).collect()
}

fn unwrap_wrapper(
    command: &PlainCommand,
    program: &str,
    args: &[Word],
    wrapper: &Wrapper,
) -> Result<Vec<(PlainCommand, bool)>, TooComplex> {
    let mut found = Vec::new();
    let mut at = operands(args, wrapper, &mut found)?;
    let mut inner = PlainCommand { after: command.after, depth: command.depth, ..PlainCommand::default() };
    let assignment = |at: usize| args.get(at).and_then(Word::text).and_then(|text| text.split_once('='));
    while let Some((name, value)) = assignment(at).filter(|_| wrapper.assignments) {
        inner.assignments.push(Assignment { name: name.to_owned(), value: Word::literal(value) });
        at += 1;
    }
    if matches!(program, "env" | "genv")
        && args.iter().take(at).filter_map(Word::text).any(|arg| {
            arg.starts_with("--s") || (arg.starts_with('-') && !arg.starts_with("--") && arg.contains('S'))
        })
    {
        return Err(too_complex("`env -S`, which splits a string into a command"));
    }
    at += wrapper.n_operands;
    let mut rest = args.get(at..).unwrap_or_default();
    // `flock FILE -c SCRIPT`
    if wrapper.n_operands > 0
        && let [option, value, ..] = rest
        && option.text().is_some_and(|text| wrapper.script.contains(&text))
    {
        found.extend(script(std::slice::from_ref(value)).map(opaque)?);
        rest = &[];
    }
    if rest.is_empty() {
        return Ok(found);
    }
    if wrapper.joins {
        let end = rest.iter().position(|word| word.text().is_some_and(|text| text.starts_with(":::")));
        // What stands for an argument may be anything.
        let commands = script(&rest[..end.unwrap_or(rest.len())])?.into_iter().map(|mut command| {
            if program == "parallel" {
                fill_places(&mut command.argv);
                command.argv.push(Word::unknown());
            }
            command
        });
        found.extend(opaque(commands.collect()));
        return Ok(found);
    }
    inner.argv = rest.to_vec();
    let Some(inner_program) = inner.program() else {
        return Err(too_complex("a program name that is expanded"));
    };
    check_program(inner_program, 0)?;
    let mut transparent = wrapper.transparent;
    if program == "xargs" || program == "gxargs" {
        // Its input becomes more arguments.
        fill_places(&mut inner.argv);
        inner.argv.push(Word::unknown());
        transparent = at == 0;
    }
    // `time -o FILE` and `-oFILE` write a file.
    if matches!(program, "time" | "gtime") && args[..at].iter().any(|arg| arg.text() != Some("-p")) {
        transparent = false;
    }
    inner.assignments.splice(0..0, command.assignments.iter().cloned());
    found.push((inner, transparent));
    Ok(found)
}

/// Words with a `{}`, which stands for what is not known.
fn fill_places(argv: &mut [Word]) {
    for word in argv {
        if word.text().is_some_and(|text| text.contains('{')) {
            *word = Word::unknown();
        }
    }
}

/// Where the operands begin. Scripts that options name are added to what was found.
fn operands(
    args: &[Word],
    wrapper: &Wrapper,
    found: &mut Vec<(PlainCommand, bool)>,
) -> Result<usize, TooComplex> {
    let mut at = 0;
    while let Some(arg) = args.get(at) {
        let Some(text) = arg.text() else {
            if arg.may_be_option() {
                return Err(too_complex("a wrapper whose options are expanded"));
            }
            break;
        };
        if text == "--" {
            return Ok(at + 1);
        }
        if !text.starts_with('-') || text == "-" {
            break;
        }
        if let Some(value) = wrapper.script_of(text) {
            let word = match value {
                Some(text) => Some(Word::literal(text)),
                None => args.get(at + 1).cloned(),
            };
            if let Some(word) = word {
                found.extend(script(&[word]).map(opaque)?);
            }
        }
        at += wrapper.option_len(text);
    }
    Ok(at)
}

/// `sh -c SCRIPT`, also with other short options in the same word.
fn script_of_shell(args: &[Word]) -> Result<Vec<(PlainCommand, bool)>, TooComplex> {
    let mut at = 0;
    let mut has_script = false;
    while let Some(arg) = args.get(at) {
        let Some(text) = arg.text() else {
            if has_script {
                break;
            }
            return match arg.may_be_option() {
                true => Err(too_complex("a shell whose options are expanded")),
                false => Ok(Vec::new()),
            };
        };
        if !(text.starts_with('-') || text.starts_with('+')) || text == "-" || text == "--" {
            at += usize::from(text == "--");
            break;
        }
        has_script |= !text.starts_with("--") && text.contains('c');
        at += if matches!(text, "-o" | "+o" | "-O" | "+O" | "--rcfile" | "--init-file")
            || (!text.starts_with("--") && text.ends_with('o'))
        {
            2
        } else {
            1
        };
    }
    match (has_script, args.get(at)) {
        (true, Some(word)) => script(std::slice::from_ref(word)).map(opaque),
        _ => Ok(Vec::new()),
    }
}

fn script(words: &[Word]) -> Result<Vec<PlainCommand>, TooComplex> {
    let texts: Option<Vec<&str>> = words.iter().map(Word::text).collect();
    let Some(texts) = texts else {
        return Err(too_complex("a script that is put together by expansion"));
    };
    match parse(&texts.join(" ")) {
        Parsed::Simple(commands) => Ok(commands),
        Parsed::TooComplex(reason) => {
            Err(TooComplex { what: format!("{} in an inner script", reason.what), at: 0 })
        }
    }
}

/// The commands of `-exec … ;` and `-exec … +`.
fn find_actions(command: &PlainCommand, args: &[Word]) -> Vec<(PlainCommand, bool)> {
    let mut found = Vec::new();
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let is_action = word.text().is_some_and(|text| {
            matches!(text, "-exec" | "-execdir" | "-ok" | "-okdir" | "-x" | "-X" | "--exec" | "--exec-batch")
        });
        if !is_action {
            continue;
        }
        let argv: Vec<Word> = words
            .by_ref()
            .take_while(|word| !matches!(word.text(), Some(";" | "+")))
            .map(|word| match word.text() {
                Some(text) if text.contains("{}") => Word::unknown(),
                _ => word.clone(),
            })
            .collect();
        if !argv.is_empty() {
            let after = command.after;
            found
                .push((PlainCommand { argv, after, depth: command.depth, ..PlainCommand::default() }, false));
        }
    }
    found
}

/// The last part of a path.
pub(crate) fn base_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}
