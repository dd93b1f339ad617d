//! Compares Grep with the command `rg` on a large tree, and what a call of Read, Edit and Glob costs beside the system
//! calls it is made of. Run: `cargo run --release -p worker --example bench_tools [FILES]`. `rg` is Debian's package
//! `ripgrep`; `RG` names another one.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use query_engine::ports::{NoObserver, Tool, ToolContext, ToolOutput};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use worker::tools::{Files, editing, read_only};

/// Rounds of a search, and of a single call.
const ROUNDS: usize = 9;
const CALLS: usize = 300;
/// Files of one directory.
const FANOUT: usize = 40;

type Failure = Box<dyn std::error::Error>;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn milliseconds(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1_000.0)
}

struct Bench {
    root: PathBuf,
    tools: Vec<Arc<dyn Tool>>,
}

impl Bench {
    fn new(root: PathBuf) -> Self {
        let files = Arc::new(Files::new(root.clone(), root.clone(), Arc::new(|_: &Path| true)));
        Self { root, tools: [read_only(&files), editing(&files)].concat() }
    }

    async fn call(&self, name: &str, input: Value) -> Result<ToolOutput, Failure> {
        let tool = self.tools.iter().find(|tool| tool.name() == name).ok_or("no such tool")?;
        let context = ToolContext {
            tool_use_id: "toolu_1".parse()?,
            cancel: CancellationToken::new(),
            observer: Arc::new(NoObserver),
        };
        let output = tool.call(input, context).await;
        if output.is_error { Err(format!("{name}: {:?}", output.content).into()) } else { Ok(output) }
    }

    /// The tool and the command by turns, so that both have the same caches and the same neighbours.
    async fn against_rg(
        &self,
        rg: &str,
        what: &str,
        arguments: &[&str],
        input: Value,
    ) -> Result<(), Failure> {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let began = Instant::now();
            self.call("Grep", input.clone()).await?;
            let our_time = began.elapsed();
            let began = Instant::now();
            let mut command = Command::new(rg);
            command.args(["--hidden", "--glob", "!.git"]).args(arguments).arg(".").current_dir(&self.root);
            command.stdout(Stdio::piped()).stdin(Stdio::null()).output()?;
            // The first round fills the caches.
            if round > 0 {
                ours.push(our_time);
                theirs.push(began.elapsed());
            }
        }
        let (ours, theirs) = (median(ours), median(theirs));
        println!(
            "{what:<34} Grep {:>11}   rg {:>11}   {:.2} times",
            milliseconds(ours),
            milliseconds(theirs),
            ours.as_secs_f64() / theirs.as_secs_f64()
        );
        Ok(())
    }
}

/// Words without sense, the same every time.
fn words(state: &mut u64, count: usize, text: &mut String) {
    const WORDS: [&str; 16] = [
        "let", "total", "value", "return", "match", "error", "state", "index", "the", "buffer", "result",
        "struct", "if", "else", "while", "for",
    ];
    for n in 0..count {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(WORDS[(*state >> 60) as usize]);
        text.push(if n % 9 == 8 { '\n' } else { ' ' });
    }
}

fn tree(root: &Path, count: usize) -> Result<(), Failure> {
    fs::create_dir(root.join(".git"))?;
    fs::write(root.join(".gitignore"), "target/\n*.o\n")?;
    let mut state = 1;
    for n in 0..count {
        let directory = root.join(format!("d{}/e{}", n / (FANOUT * FANOUT), n / FANOUT));
        if n % FANOUT == 0 {
            fs::create_dir_all(&directory)?;
        }
        let mut text = String::new();
        let count = 100 + (state >> 32) as usize % 600;
        words(&mut state, count, &mut text);
        if n % 1_000 == 0 {
            text.push_str("the needle_in_the_hay stands here\n");
        }
        fs::write(directory.join(format!("file{n}.{}", ["rs", "py", "md"][n % 3])), text)?;
    }
    Ok(())
}

async fn searches(bench: &Bench) -> Result<(), Failure> {
    let rg = std::env::var("RG").unwrap_or_else(|_| "rg".to_owned());
    if Command::new(&rg).arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("there is no `{rg}` to compare with: apt-get install ripgrep, or RG=/path/to/rg");
        return Ok(());
    }
    let all = |mut input: Value, mode: &str| {
        input["output_mode"] = mode.into();
        input["head_limit"] = 0.into();
        input
    };
    let needle = || json!({"pattern": "needle_in_the_hay"});
    bench
        .against_rg(
            &rg,
            "a rare word, files",
            &["-l", "needle_in_the_hay"],
            all(needle(), "files_with_matches"),
        )
        .await?;
    bench
        .against_rg(&rg, "a rare word, lines", &["-n", "needle_in_the_hay"], all(needle(), "content"))
        .await?;
    bench
        .against_rg(
            &rg,
            "a word that is not there",
            &["-l", "zebra"],
            all(json!({"pattern": "zebra"}), "files_with_matches"),
        )
        .await?;
    bench
        .against_rg(
            &rg,
            "a common word, counted",
            &["-c", "buffer"],
            all(json!({"pattern": "buffer"}), "count"),
        )
        .await?;
    let classes = r"\w+_in_\w+\s+stands";
    bench
        .against_rg(
            &rg,
            "an expression, files",
            &["-l", classes],
            all(json!({"pattern": classes}), "files_with_matches"),
        )
        .await?;
    bench
        .against_rg(
            &rg,
            "a word in Rust files, any case",
            &["-l", "-i", "-t", "rust", "NEEDLE_in"],
            all(json!({"pattern": "NEEDLE_in", "-i": true, "type": "rust"}), "files_with_matches"),
        )
        .await?;
    bench
        .against_rg(
            &rg,
            "over lines",
            &["-l", "-U", "hay stands.here\\n"],
            all(json!({"pattern": "hay stands.here\\n", "multiline": true}), "files_with_matches"),
        )
        .await?;
    let first = json!({"pattern": "buffer", "output_mode": "content"});
    bench.against_rg(&rg, "first 250 lines of a common word", &["-n", "buffer"], first).await
}

/// Lists a tree and asks for the time of a third of its files, as Glob has to.
fn stat_all(directory: &Path) -> Result<u64, Failure> {
    let mut sum = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sum += stat_all(&entry.path())?;
        } else if entry.path().extension().is_some_and(|extension| extension == "rs") {
            sum += entry.metadata()?.len();
        }
    }
    Ok(sum)
}

/// A call of a tool beside the system calls that it cannot do without.
async fn overheads(bench: &Bench) -> Result<(), Failure> {
    let path = bench.root.join("one.txt");
    let mut text = String::new();
    words(&mut 7, 2_000, &mut text);
    fs::write(&path, format!("{text}marker 0\n"))?;
    let mut rows = Vec::new();

    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..CALLS {
        let began = Instant::now();
        bench.call("Read", json!({"file_path": "one.txt"})).await?;
        ours.push(began.elapsed());
        let began = Instant::now();
        std::hint::black_box(fs::read(&path)?);
        bare.push(began.elapsed());
    }
    rows.push(("Read, 200 lines", ours, bare));

    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for n in 0..CALLS {
        let input = json!({"file_path": "one.txt", "old_string": format!("marker {n}\n"), "new_string": format!("marker {}\n", n + 1)});
        let began = Instant::now();
        bench.call("Edit", input).await?;
        ours.push(began.elapsed());
        let began = Instant::now();
        let content = fs::read(&path)?;
        let mut temporary = tempfile::NamedTempFile::new_in(&bench.root)?;
        temporary.write_all(&content)?;
        temporary.persist(bench.root.join("bare.txt"))?;
        bare.push(began.elapsed());
    }
    rows.push(("Edit, 200 lines", ours, bare));

    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..CALLS {
        let began = Instant::now();
        bench.call("Glob", json!({"pattern": "*.rs", "path": "d0/e0"})).await?;
        ours.push(began.elapsed());
        let began = Instant::now();
        for entry in fs::read_dir(bench.root.join("d0/e0"))? {
            std::hint::black_box(entry?.metadata()?);
        }
        bare.push(began.elapsed());
    }
    rows.push(("Glob, 40 files", ours, bare));

    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let began = Instant::now();
        bench.call("Glob", json!({"pattern": "**/*.rs"})).await?;
        ours.push(began.elapsed());
        let began = Instant::now();
        std::hint::black_box(stat_all(&bench.root)?);
        bare.push(began.elapsed());
    }
    rows.push(("Glob, the whole tree", ours, bare));

    for (what, ours, bare) in rows {
        let (ours, bare) = (median(ours), median(bare));
        println!(
            "{what:<34} call {:>11}   bare {:>11}   {} more",
            milliseconds(ours),
            milliseconds(bare),
            milliseconds(ours.saturating_sub(bare))
        );
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let count = std::env::args().nth(1).map_or(Ok(50_000), |text| text.parse())?;
    let directory = tempfile::tempdir()?;
    let bench = Bench::new(directory.path().canonicalize()?);
    tree(&bench.root, count)?;
    println!("{count} files");
    searches(&bench).await?;
    overheads(&bench).await
}
