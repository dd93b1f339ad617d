//! The commands inside a command: what a wrapper, an interpreter or `find -exec` starts.

use super::{Parsed, PlainCommand, TooComplex, Word, parse};

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

/// How a wrapper's own arguments end.
struct Wrapper {
    /// Options that take the following word.
    valued: &'static [&'static str],
    /// Operands of its own before the command (`timeout`'s duration).
    n_operands: usize,
    /// `NAME=value` operands before the command.
    assignments: bool,
    transparent: bool,
}

fn wrapper(program: &str) -> Option<Wrapper> {
    let plain =
        |valued, n_operands, transparent| Wrapper { valued, n_operands, assignments: false, transparent };
    Some(match program {
        "timeout" | "gtimeout" => plain(&["-k", "--kill-after", "-s", "--signal"], 1, true),
        "nice" => plain(&["-n", "--adjustment"], 0, true),
        "nohup" | "builtin" | "noglob" => plain(&[], 0, true),
        "stdbuf" => plain(&["-i", "-o", "-e", "--input", "--output", "--error"], 0, true),
        "command" => plain(&[], 0, true),
        "time" => plain(&["-f", "--format", "-o", "--output"], 0, true),
        "env" => Wrapper {
            valued: &["-u", "--unset", "-C", "--chdir", "-S", "--split-string"],
            n_operands: 0,
            assignments: true,
            transparent: false,
        },
        "exec" => plain(&["-a"], 0, false),
        "sudo" | "doas" => Wrapper {
            valued: &["-u", "-g", "-h", "-p", "-C", "-T", "-D", "-R", "--user", "--group", "--chdir"],
            n_operands: 0,
            assignments: true,
            transparent: false,
        },
        "busybox" | "toybox" | "setsid" | "unbuffer" | "fakeroot" => plain(&[], 0, false),
        "ionice" => plain(&["-c", "-n", "-p", "--class", "--classdata"], 0, false),
        "chrt" | "taskset" | "flock" | "chroot" => plain(&["-w", "-E"], 1, false),
        "strace" | "ltrace" => plain(&["-o", "-e", "-p", "-s", "-u"], 0, false),
        "xargs" | "gxargs" => plain(
            &[
                "-n",
                "-P",
                "-I",
                "-L",
                "-d",
                "-a",
                "-s",
                "-E",
                "--max-args",
                "--max-procs",
                "--replace",
                "--max-lines",
                "--delimiter",
                "--arg-file",
                "--max-chars",
            ],
            0,
            false,
        ),
        _ => return None,
    })
}

/// The commands directly inside, and whether the wrapper is one that may be stripped.
fn unwrap_once(command: &PlainCommand) -> Result<Vec<(PlainCommand, bool)>, TooComplex> {
    let Some(program) = command.program() else { return Ok(Vec::new()) };
    let program = base_name(program).to_owned();
    let args = command.argv.get(1..).unwrap_or_default();
    match program.as_str() {
        "sh" | "bash" | "dash" | "zsh" | "ksh" | "ash" => script_of_shell(args),
        "eval" => script(args).map(opaque),
        "watch" => {
            let start = operands(args, &["-n", "--interval"])?;
            script(args.get(start..).unwrap_or_default()).map(opaque)
        }
        "find" | "gfind" | "fd" | "fdfind" => Ok(find_actions(command, args)),
        "command" if args.first().and_then(Word::text).is_some_and(|arg| matches!(arg, "-v" | "-V")) => {
            Ok(Vec::new())
        }
        _ => match wrapper(&program) {
            Some(wrapper) => unwrap_wrapper(command, &program, args, &wrapper),
            None => Ok(Vec::new()),
        },
    }
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
    let mut at = operands(args, wrapper.valued)?;
    let mut inner = PlainCommand { after: command.after, depth: command.depth, ..PlainCommand::default() };
    let assignment = |at: usize| args.get(at).and_then(Word::text).and_then(|text| text.split_once('='));
    while let Some((name, value)) = assignment(at).filter(|_| wrapper.assignments) {
        inner.assignments.push(super::Assignment { name: name.to_owned(), value: Word::literal(value) });
        at += 1;
    }
    if program == "env" && args.iter().take(at).any(|arg| arg.text().is_some_and(|arg| arg.starts_with("-S")))
    {
        return Err(too_complex("`env -S`, which splits a string into a command"));
    }
    at += wrapper.n_operands;
    inner.argv = args.get(at..).unwrap_or_default().to_vec();
    if inner.argv.is_empty() {
        return Ok(Vec::new());
    }
    if inner.program().is_none() {
        return Err(too_complex("a program name that is expanded"));
    }
    let mut transparent = wrapper.transparent;
    if program == "xargs" || program == "gxargs" {
        // Its input becomes more arguments.
        inner.argv.push(Word::unknown());
        transparent = at == 0;
    }
    // `time -o FILE` writes a file.
    if program == "time" && at > 1 {
        transparent = false;
    }
    inner.assignments.splice(0..0, command.assignments.iter().cloned());
    Ok(vec![(inner, transparent)])
}

/// Where the operands begin.
fn operands(args: &[Word], valued: &[&str]) -> Result<usize, TooComplex> {
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
        at += if valued.contains(&text) { 2 } else { 1 };
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
