//! Formats of strangers as text, in a process of its own. The parsers are libraries that were not made for hostile
//! files: some input takes them hours, all memory or the stack, and no thread can be ended. A process can: it has
//! bounds from the system, and its end is an answer.

use std::{
    ffi::OsString,
    io::{Read as _, Write as _},
    ops::RangeInclusive,
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use nix::sys::{
    prctl::set_pdeathsig,
    resource::{Resource, getrlimit, setrlimit},
    signal::Signal,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

mod html;
mod pdf;

/// How long one conversion may take. A page of ten megabytes that people read takes a second or two.
const TIME: Duration = Duration::from_secs(30);
/// Address space of the process: some pages of PDF unpack to hundreds of megabytes.
const MEMORY_BYTES: u64 = 2 << 30;
/// Files nest their objects, and the parsers call themselves for each level.
const STACK_BYTES: usize = 64 << 20;
/// Bytes of text; more is of no use, and would have to be kept for the next part.
const MOST_BYTES: u64 = 16 << 20;
/// The exit code for input that is refused with a reason, which stands where the text would.
const REFUSED: i32 = 1;

/// What is to be made into text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Job {
    /// HTML, in UTF-8, as Markdown.
    Html,
    /// Pages of a PDF; all, as far as they fit, when none are named.
    Pdf(Option<RangeInclusive<u32>>),
}

impl Job {
    fn arguments(&self) -> Vec<OsString> {
        match self {
            Self::Html => vec!["html".into()],
            Self::Pdf(None) => vec!["pdf".into()],
            Self::Pdf(Some(pages)) => {
                vec!["pdf".into(), pages.start().to_string().into(), pages.end().to_string().into()]
            }
        }
    }

    fn parse(args: &[OsString]) -> Option<Self> {
        let args: Vec<&str> = args.iter().map(|arg| arg.to_str()).collect::<Option<_>>()?;
        match args[..] {
            ["html"] => Some(Self::Html),
            ["pdf"] => Some(Self::Pdf(None)),
            ["pdf", first, last] => Some(Self::Pdf(Some(first.parse().ok()?..=last.parse().ok()?))),
            _ => None,
        }
    }

    /// The text, or why there is none.
    fn run(self, bytes: &[u8]) -> Result<String, String> {
        match self {
            Self::Html => html::markdown(&String::from_utf8_lossy(bytes)),
            Self::Pdf(pages) => pdf::text(bytes, pages),
        }
    }
}

/// Starts the processes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Converter {
    place: Place,
    time: Duration,
}

#[derive(Debug, Clone)]
enum Place {
    Process(PathBuf),
    /// Tests of units have no program to start.
    #[cfg(test)]
    Here,
}

impl Default for Converter {
    /// The program that runs, whatever lies in its place by now.
    fn default() -> Self {
        Self::with_program("/proc/self/exe".into())
    }
}

impl Converter {
    /// With this `swarm-worker`.
    pub fn with_program(program: PathBuf) -> Self {
        Self { place: Place::Process(program), time: TIME }
    }

    #[cfg(test)]
    pub(crate) fn here() -> Self {
        Self { place: Place::Here, time: TIME }
    }

    /// With so much time for each call; the processor's time is bounded on its own.
    #[must_use]
    pub fn within(self, time: Duration) -> Self {
        Self { time, ..self }
    }

    /// The text of these bytes. A call that is dropped ends the process.
    ///
    /// # Errors
    /// Why there is no text, as the end of a sentence.
    pub async fn text(&self, job: Job, bytes: Vec<u8>) -> Result<String, String> {
        match &self.place {
            Place::Process(program) => {
                let converting = in_process(program, &job, bytes);
                let late = |_| Err(format!("it takes longer than {} s to convert", self.time.as_secs()));
                tokio::time::timeout(self.time, converting).await.unwrap_or_else(late)
            }
            #[cfg(test)]
            Place::Here => tokio::task::spawn_blocking(move || job.run(&bytes)).await.expect("no panic"),
        }
    }
}

async fn in_process(program: &PathBuf, job: &Job, bytes: Vec<u8>) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("its converter could not be run: {error}");
    let mut child = tokio::process::Command::new(program)
        .arg("convert")
        .args(job.arguments())
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("its converter has no pipes".to_owned());
    };
    let giving = async move {
        // One that ends early reads no more; what it said counts.
        let _broken: std::io::Result<()> = input.write_all(&bytes).await;
    };
    let mut text = Vec::new();
    let mut output = output.take(MOST_BYTES + 1);
    let ((), taken) = tokio::join!(giving, output.read_to_end(&mut text));
    taken.map_err(failed)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(format!("it makes more than {} MiB of text", MOST_BYTES >> 20));
    }
    let status = child.wait().await.map_err(failed)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    match status.code() {
        Some(0) => Ok(text),
        Some(REFUSED) if !text.is_empty() => Err(text),
        _ => Err("its parser failed inside".to_owned()),
    }
}

/// `swarm-worker convert`: from standard input to standard output.
pub fn main(args: impl Iterator<Item = OsString>) -> i32 {
    let Some(job) = Job::parse(&args.collect::<Vec<_>>()) else {
        return 2;
    };
    let answer = bound().map_err(|errno| errno.to_string()).and_then(|()| {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        let work = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || job.run(&bytes));
        let panicked = |_| Err("its parser failed inside".to_owned());
        work.map_err(|error| error.to_string())?.join().unwrap_or_else(panicked)
    });
    let (text, code) = match answer {
        Ok(text) => (text, 0),
        Err(problem) => (problem, REFUSED),
    };
    // Nobody reads more than is wanted.
    let written = std::io::stdout().write_all(text.as_bytes());
    if written.is_ok() { code } else { 2 }
}

/// What the system ends the process for.
fn bound() -> nix::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    for (resource, limit) in [
        (Resource::RLIMIT_AS, MEMORY_BYTES),
        (Resource::RLIMIT_CPU, TIME.as_secs()),
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_FSIZE, 0),
    ] {
        let (_, hard) = getrlimit(resource)?;
        setrlimit(resource, limit.min(hard), limit.min(hard))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_says_itself_in_arguments() {
        for job in [Job::Html, Job::Pdf(None), Job::Pdf(Some(2..=u32::MAX))] {
            assert_eq!(Job::parse(&job.arguments()), Some(job));
        }
        for wrong in [vec![], vec!["pdf", "1"], vec!["pdf", "x", "2"], vec!["html", "x"]] {
            let wrong: Vec<OsString> = wrong.into_iter().map(OsString::from).collect();
            assert_eq!(Job::parse(&wrong), None);
        }
    }
}
