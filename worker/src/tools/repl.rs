//! REPL: an interpreter that keeps its state from one call to the next, confined as commands are. One a language,
//! started when it is first used, ended with the run. Off unless a person switched it on.
//!
//! The interpreter runs a small program of ours that reads one JSON line a call and ends what the code printed with a
//! mark, which is another one each time. What runs too long, or is cancelled, ends the interpreter: its state is gone,
//! and the answer says so.

use std::{
    ffi::OsString,
    sync::{Arc, Mutex as StdMutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use query_engine::ports::{Tool, ToolContext, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{ChildStdin, ChildStdout},
    sync::Mutex,
};

use super::{lenient_bool, lenient_number, parse};
use crate::{
    sandbox::WriteScope,
    shell::{DEFAULT_TIMEOUT, Kept, KeptRequest, MAX_TIMEOUT, Shell},
};

/// Of what the code printed, the head and the tail.
const HEAD_BYTES: usize = 10_000;
const TAIL_BYTES: usize = 20_000;
/// Reading unit.
const CHUNK: usize = 16 * 1024;
/// What stands before a mark; no text has it.
const SEPARATOR: &str = "\n\x1e";

const PYTHON: &str = include_str!("repl/driver.py");
const NODE: &str = include_str!("repl/driver.js");

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Language {
    Python,
    Node,
}

impl Language {
    fn argv(self) -> Vec<OsString> {
        match self {
            Self::Python => ["python3", "-u", "-c", PYTHON],
            Self::Node => ["node", "--no-warnings", "-e", NODE],
        }
        .map(OsString::from)
        .to_vec()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Python => "python3",
            Self::Node => "node",
        }
    }
}

/// The interpreters of a run, and the tool over them.
pub struct Repl {
    shell: Arc<Shell>,
    slots: [Mutex<Option<Interpreter>>; 2],
    has_ended: StdMutex<bool>,
}

struct Interpreter {
    kept: Kept,
    stdin: ChildStdin,
    stdout: ChildStdout,
    /// What it may write; what it was started with stays.
    scope: WriteScope,
}

/// How a call ended.
enum Run {
    Done {
        is_error: bool,
    },
    /// The interpreter is gone.
    Gone(String),
}

impl Repl {
    /// Starts nothing yet.
    pub fn new(shell: Arc<Shell>) -> Arc<Self> {
        Arc::new(Self { shell, slots: [Mutex::default(), Mutex::default()], has_ended: StdMutex::new(false) })
    }

    /// Ends the interpreters, and what they started.
    pub async fn end(&self) {
        *self.has_ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        for slot in &self.slots {
            let interpreter = slot.lock().await.take();
            if let Some(interpreter) = interpreter {
                interpreter.kept.end().await;
            }
        }
    }

    async fn start(&self, language: Language) -> Result<Interpreter, String> {
        if *self.has_ended.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err("The run has ended.".to_owned());
        }
        let scope = self.shell.write_scope();
        let request = KeptRequest { argv: language.argv(), environment: Vec::new(), write_scope: scope };
        let started = self.shell.keep(request).await;
        let (kept, stdin, stdout) =
            started.map_err(|error| format!("{} could not be started: {error}.", language.name()))?;
        Ok(Interpreter { kept, stdin, stdout, scope })
    }

    async fn run(&self, input: Input, context: &ToolContext) -> Result<ToolOutput, String> {
        let language = input.language;
        let mut slot = self.slots[language as usize].lock().await;
        // Plan mode takes away what one that runs already may write.
        let is_other = |former: &mut Interpreter| input.reset || former.scope != self.shell.write_scope();
        if let Some(former) = slot.take_if(is_other) {
            former.kept.end().await;
        }
        // While it works it is out of its place: a call that is dropped drops the interpreter, too.
        let mut interpreter = match slot.take() {
            Some(interpreter) => interpreter,
            None => self.start(language).await?,
        };
        let time = input.timeout.map_or(DEFAULT_TIMEOUT, Duration::from_millis).min(MAX_TIMEOUT);
        let mut printed = Printed::default();
        // What a branch that does not win has read is in `printed`.
        let run = tokio::select! {
            biased;
            () = context.cancel.cancelled() => Run::Gone("The call was cancelled".to_owned()),
            run = interpreter.run(&input.code, &mut printed) => run,
            () = tokio::time::sleep(time) => Run::Gone(format!("It took more than {} s", time.as_secs_f32())),
        };
        let text = printed.text();
        match run {
            Run::Done { is_error } => {
                *slot = Some(interpreter);
                let text = if text.is_empty() { "It printed nothing.".to_owned() } else { text };
                Ok(if is_error { ToolOutput::error(text) } else { ToolOutput::text(text) })
            }
            Run::Gone(why) => {
                let said = interpreter.kept.stderr();
                interpreter.kept.end().await;
                let said = if said.is_empty() { String::new() } else { format!("\n{said}") };
                Err(format!("{text}{said}\n[{why}, so the interpreter was ended: its state is gone]")
                    .trim_start()
                    .to_owned())
            }
        }
    }
}

impl Interpreter {
    async fn run(&mut self, code: &str, printed: &mut Printed) -> Run {
        let mark = uuid::Uuid::new_v4().simple().to_string();
        let line = format!("{}\n", json!({"code": code, "mark": mark}));
        if let Err(error) = self.stdin.write_all(line.as_bytes()).await {
            return Run::Gone(format!("The interpreter takes no input ({error})"));
        }
        let mark = format!("{SEPARATOR}{mark} ");
        let mut buffer = vec![0; CHUNK];
        loop {
            if let Some(is_error) = printed.take_mark(&mark) {
                return Run::Done { is_error };
            }
            match self.stdout.read(&mut buffer).await {
                Ok(count @ 1..) => printed.push(&buffer[..count]),
                Ok(0) | Err(_) => {
                    let status = self.kept.ended().await;
                    return Run::Gone(format!("The interpreter ended ({status})"));
                }
            }
        }
    }
}

/// What came, bounded: the head, and the newest bytes.
#[derive(Default)]
struct Printed {
    head: Vec<u8>,
    tail: Vec<u8>,
    n_dropped: usize,
}

impl Printed {
    fn push(&mut self, bytes: &[u8]) {
        let room = HEAD_BYTES - self.head.len();
        // The end has to stay in one piece: the mark is looked for there.
        self.tail.extend_from_slice(bytes);
        if self.head.is_empty() || room > 0 {
            let moved = room.min(self.tail.len().saturating_sub(TAIL_BYTES));
            self.head.extend(self.tail.drain(..moved));
        }
        let excess = self.tail.len().saturating_sub(TAIL_BYTES);
        if excess > 0 {
            self.tail.drain(..excess);
            self.n_dropped += excess;
        }
    }

    /// Whether all has come; takes the mark away. The answer is whether the code failed. What threads of it print may
    /// stand behind the mark already, and stays.
    fn take_mark(&mut self, mark: &str) -> Option<bool> {
        let at = self.tail.windows(mark.len()).rposition(|window| window == mark.as_bytes())?;
        let word = &self.tail[at + mark.len()..];
        let length = word.iter().position(|byte| *byte == b'\n')?;
        let is_error = &word[..length] != b"ok";
        self.tail.drain(at..at + mark.len() + length + 1);
        Some(is_error)
    }

    fn text(&self) -> String {
        let (head, tail) = (String::from_utf8_lossy(&self.head), String::from_utf8_lossy(&self.tail));
        match self.n_dropped {
            0 => format!("{head}{tail}"),
            n => format!("{head}\n[{n} bytes left out]\n{tail}"),
        }
        .trim_end()
        .to_owned()
    }
}

#[derive(Deserialize)]
struct Input {
    language: Language,
    code: String,
    #[serde(default, deserialize_with = "lenient_number")]
    timeout: Option<u64>,
    #[serde(default, deserialize_with = "lenient_bool")]
    reset: bool,
}

/// The tool.
pub struct ReplTool(pub Arc<Repl>);

#[async_trait]
impl Tool for ReplTool {
    fn name(&self) -> &str {
        "REPL"
    }

    fn description(&self) -> String {
        "Runs code in an interpreter that keeps its variables from one call to the next: Python 3 or Node.js. What the \
         code prints and the value of its last expression are the answer. It runs in the sandbox, in the worktree. \
         Time limit 120 s, at most 600 s; code that takes longer loses the interpreter's state."
            .to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "language": {"type": "string", "enum": ["python", "node"]},
                "code": {"type": "string"},
                "timeout": {"type": "integer", "description": "Milliseconds, default 120000, at most 600000"},
                "reset": {"type": "boolean", "description": "Begin with a fresh interpreter"}
            },
            "required": ["language", "code"]
        })
    }

    fn is_read_only(&self, _: &Value) -> bool {
        false
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        false
    }

    fn search_hint(&self) -> &str {
        "interpreter, python, javascript, evaluate code, compute, notebook"
    }

    async fn call(&self, input: Value, context: ToolContext) -> ToolOutput {
        match parse("REPL", input) {
            Ok(input) => self.0.run(input, &context).await.unwrap_or_else(ToolOutput::error),
            Err(problem) => ToolOutput::error(problem),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_bounded_and_its_end_is_whole() {
        let mark = format!("{SEPARATOR}m ");
        let mut printed = Printed::default();
        for piece in ["ab", "c\n\x1e", "m o", "k\n"] {
            assert_eq!(printed.take_mark(&mark), None);
            printed.push(piece.as_bytes());
        }
        assert_eq!(printed.take_mark(&mark), Some(false));
        assert_eq!(printed.text(), "abc");

        // A thread of the code prints on, with and without an end of line.
        for late in ["late\n", "late"] {
            let mut printed = Printed::default();
            printed.push(format!("a\n{mark}ok\n{late}").as_bytes());
            assert_eq!(printed.take_mark(&mark), Some(false));
            assert_eq!(printed.text(), "a\nlate");
        }

        let mut printed = Printed::default();
        for n in 0..100_000 {
            printed.push(format!("{n:06}\n").as_bytes());
        }
        printed.push(b"\n\x1em error\n");
        assert_eq!(printed.take_mark(&mark), Some(true));
        let text = printed.text();
        assert!(text.len() < HEAD_BYTES + TAIL_BYTES + 100, "{}", text.len());
        assert!(text.starts_with("000000\n000001\n") && text.ends_with("099998\n099999"));
        assert!(text.contains("bytes left out]"));
    }
}
