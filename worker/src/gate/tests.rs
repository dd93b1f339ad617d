use std::{path::Path, time::Duration};

use agent_host::transcript::TranscriptFile;
use query_engine::{
    budget::Budget,
    classifier::CompactHistory,
    ports::{Durability, NoObserver, Transcript},
    testing::{Script, ScriptedModel, Step},
};
use serde_json::json;
use swarm_protocol::{
    Timestamp,
    permission::{Decision, Racer, RuleOrigin, Scope},
    record::RecordBody,
};
use tokio_util::sync::CancellationToken;

use agent_host::secrets::Masker;

use super::{classifier::Verdict, *};
use crate::{
    link::Outbox,
    sandbox::{SandboxPolicy, SystemPaths},
    shell::{Environment, ShellConfig},
    tools::{Files, edit::Edit, read::Read, write::Write},
};

struct Rig {
    dir: tempfile::TempDir,
    gate: Arc<WorkerGate>,
    files: Arc<Files>,
    link: watch::Sender<LinkState>,
    not_taken: NotTaken,
    clock: Arc<RunClock>,
    cancel: CancellationToken,
}

fn rule(behavior: RuleBehavior, text: &str) -> Rule {
    let origin = RuleOrigin { level: "session".to_owned(), file: None, line: None, anchor: None };
    Rule { behavior, text: text.to_owned(), origin }
}

/// Paths on a file system that does not answer.
struct DeadMount {
    asked: mpsc::UnboundedSender<()>,
    answers: Mutex<std::sync::mpsc::Receiver<()>>,
}

impl PathResolver for DeadMount {
    fn resolve(&self, path: &Path) -> Option<PathBuf> {
        self.exists(path).then(|| path.to_owned())
    }

    fn names(&self, _: &Path, _: usize) -> Option<Vec<std::ffi::OsString>> {
        Some(Vec::new())
    }

    fn look_below(&self, _: &Path, _: &dyn Fn(&Path) -> bool) -> agent_host::Look {
        agent_host::Look::Nothing
    }

    fn exists(&self, _: &Path) -> bool {
        let _told = self.asked.send(());
        // Until the other end is gone.
        self.answers.lock().unwrap().recv().is_ok()
    }
}

impl Rig {
    fn new() -> Self {
        Self::with_paths(Arc::new(DiskPaths))
    }

    fn with_paths(paths: Arc<dyn PathResolver>) -> Self {
        Self::made(paths, PermissionMode::AcceptEdits, false)
    }

    fn made(paths: Arc<dyn PathResolver>, mode: PermissionMode, is_unattended: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let worktree = root.join("w");
        std::fs::create_dir(&worktree).unwrap();
        let (file, loaded) = TranscriptFile::open_after_checkpoint(&root.join("t.jsonl")).unwrap();
        let outbox = Arc::new(Outbox::default());
        let recorder = Arc::new(Recorder::new(file, RunNumber(1), outbox, &loaded));
        let policy =
            SandboxPolicy::for_worktree(worktree.clone(), root.join("temp"), SystemPaths::without_home());
        let environment = Environment::filtered(std::iter::empty());
        let config = ShellConfig::new(policy, environment, "run".to_owned(), root.join("out"));
        let shell = Arc::new(Shell::new(config).unwrap());
        let files = Arc::new(Files::new(worktree, root.clone(), Arc::new(|_: &Path| true)));
        let (link, state) = watch::channel(LinkState::Away);
        let clock = Arc::new(RunClock::default());
        let config = GateConfig {
            worker_id: "agent-a1b".parse().unwrap(),
            run: RunNumber(1),
            rules: RuleSet::default(),
            mode,
            isolation: Isolation::Worktree,
            sandbox: SandboxState { enforces: true, auto_allow: true, is_read_only: false },
            is_unattended,
            home: root,
            writable: Vec::new(),
            readable: Vec::new(),
            timeout: Duration::from_secs(600).into(),
            asks_when_unavailable: false,
        };
        let (not_taken, _) = tokio::sync::broadcast::channel(4);
        let gate_link = GateLink { state, not_taken: not_taken.clone(), masker: Masker::default() };
        let gate =
            WorkerGate::with_paths(config, files.clone(), paths, shell, recorder, gate_link, clock.clone());
        Self { dir, gate: Arc::new(gate), files, link, not_taken, clock, cancel: CancellationToken::new() }
    }

    fn context(&self) -> ToolContext {
        ToolContext {
            tool_use_id: "t1".parse().unwrap(),
            cancel: self.cancel.clone(),
            observer: Arc::new(NoObserver),
        }
    }

    /// Starts a call that asks; answers once the request is recorded.
    async fn ask(&self) -> (tokio::task::JoinHandle<GateAnswer>, PermissionRequestId) {
        let input = json!({"file_path": self.dir.path().join("outside"), "content": ""});
        self.asks(Arc::new(Write::new(self.files.clone())), input).await
    }

    async fn asks(
        &self,
        tool: Arc<dyn Tool>,
        input: Value,
    ) -> (tokio::task::JoinHandle<GateAnswer>, PermissionRequestId) {
        let (gate, context) = (self.gate.clone(), self.context());
        let task = tokio::spawn(async move { gate.check(tool.as_ref(), &input, &context).await });
        loop {
            if let Some((id, _)) = self.gate.recorder.facts().open_requests.first() {
                return (task, id.clone());
            }
            tokio::task::yield_now().await;
        }
    }

    /// The request, once it is in the transcript.
    async fn recorded_request(&self) -> Value {
        loop {
            let transcript = std::fs::read_to_string(self.dir.path().join("t.jsonl")).unwrap();
            // The last line may not be whole yet.
            let mut records = transcript.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            if let Some(request) = records.find_map(|record| record["body"].get("request").cloned()) {
                return request;
            }
            tokio::task::yield_now().await;
        }
    }

    fn records(&self) -> Vec<RecordBody> {
        let page = agent_host::transcript::read_page(&self.dir.path().join("t.jsonl"), 0, 1_000).unwrap();
        page.records.into_iter().map(|stored| stored.record.body).collect()
    }

    fn request(&self) -> PermissionRequest {
        let request = self.records().into_iter().find_map(|body| match body {
            RecordBody::PermissionRequested { request } => Some(*request),
            _ => None,
        });
        request.unwrap()
    }

    fn bids(&self) -> Vec<PermissionBid> {
        let bid = |body| match body {
            RecordBody::PermissionBid { bid } => Some(bid),
            _ => None,
        };
        self.records().into_iter().filter_map(bid).collect()
    }

    /// Waits for the first bid.
    async fn bid(&self) -> PermissionBid {
        loop {
            if let Some(bid) = self.bids().into_iter().next() {
                return bid;
            }
            tokio::task::yield_now().await;
        }
    }

    fn decision(&self, id: PermissionRequestId, decision: Decision) -> PermissionDecision {
        PermissionDecision {
            id,
            decision,
            scope: Scope::Once,
            by: Racer::Person,
            reason: None,
            stop: true,
            decided_at: Timestamp::from_millis(0),
            source: None,
            args_hash: String::new(),
        }
    }
}

fn denied(answer: GateAnswer, words: &str) {
    let GateAnswer::Deny { text, .. } = answer else { panic!("allowed") };
    assert!(text.contains(words), "{text}");
}

#[tokio::test]
async fn one_decision_counts() {
    let rig = Rig::new();
    let (task, id) = rig.ask().await;
    rig.gate.decided(rig.decision(id.clone(), Decision::Deny));
    rig.gate.decided(rig.decision(id, Decision::Allow));
    let answer = task.await.unwrap();
    assert!(matches!(&answer, GateAnswer::Deny { stop: true, .. }));
    denied(answer, "A person refused this call.");
}

#[tokio::test]
async fn a_new_rule_or_mode_bids_for_what_waits_and_the_desk_decides() {
    let rig = Rig::new();
    let (task, id) = rig.ask().await;
    // A rule about something else leaves it waiting, however often.
    for _ in 0..5 {
        rig.gate.add_rule(rule(RuleBehavior::Allow, "WebFetch")).unwrap();
    }
    tokio::task::yield_now().await;
    assert!(!task.is_finished());
    assert_eq!(rig.bids(), []);
    rig.gate.add_rule(rule(RuleBehavior::Deny, "Edit")).unwrap();
    let bid = rig.bid().await;
    assert_eq!((&bid.id, bid.by, bid.decision), (&id, Racer::Rule, Decision::Deny));
    assert!(!task.is_finished(), "the desk has not decided");
    let mut decision = rig.decision(id, bid.decision);
    (decision.by, decision.reason) = (bid.by, bid.reason);
    rig.gate.decided(decision);
    denied(task.await.unwrap(), "refused by the settings: the deny rule `Edit`");

    let rig = Rig::new();
    let (task, id) = rig.ask().await;
    rig.gate.set_mode(PermissionMode::BypassPermissions);
    let bid = rig.bid().await;
    assert_eq!((bid.by, bid.decision), (Racer::Rule, Decision::Allow));
    // Somebody was faster.
    rig.gate.decided(rig.decision(id, Decision::Deny));
    denied(task.await.unwrap(), "A person refused");
}

#[tokio::test]
async fn z02_a_decision_lets_nothing_run_but_the_call_it_was_made_for() {
    for (decided_for, is_allowed) in [(None, true), (Some(true), true), (Some(false), false)] {
        let rig = Rig::new();
        let (task, id) = rig.ask().await;
        let hash = rig.request().args_hash;
        assert_eq!(hash.len(), 64);
        let mut decision = rig.decision(id, Decision::Allow);
        decision.args_hash = match decided_for {
            None => String::new(),
            Some(true) => hash,
            Some(false) => "0".repeat(64),
        };
        rig.gate.decided(decision);
        match (task.await.unwrap(), is_allowed) {
            (GateAnswer::Allow, true) => {}
            (answer, false) => denied(answer, "given to another call"),
            (answer, _) => panic!("{answer:?}"),
        }
    }
}

#[tokio::test]
async fn z04_a_request_that_the_server_cannot_journal_fails_its_call_alone() {
    let rig = Rig::new();
    let (task, id) = rig.ask().await;
    // Of another request.
    rig.not_taken.send(("req-00000000".parse().unwrap(), "full".to_owned())).unwrap();
    tokio::task::yield_now().await;
    assert!(!task.is_finished());
    rig.not_taken.send((id, "no space left on device".to_owned())).unwrap();
    denied(task.await.unwrap(), "could not be recorded: no space left on device");
    assert!(rig.gate.recorder.facts().open_requests.is_empty(), "it was withdrawn");
}

#[tokio::test]
async fn z04_a_request_that_cannot_be_parked_fails_its_call_and_the_agent_goes_on() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let rig = Rig::new();
    // The file can grow no further: writes fail, as on a full disk. Whoever handles the signal is not killed by it.
    let kind = tokio::signal::unix::SignalKind::from_raw(nix::sys::signal::Signal::SIGXFSZ as i32);
    let _handled = tokio::signal::unix::signal(kind).unwrap();
    let size = std::fs::metadata(rig.dir.path().join("t.jsonl")).unwrap().len();
    let (soft, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
    setrlimit(Resource::RLIMIT_FSIZE, size, hard).unwrap();
    let tool = Write::new(rig.files.clone());
    let input = json!({"file_path": rig.dir.path().join("outside"), "content": ""});
    let answer = rig.gate.check(&tool, &input, &rig.context()).await;
    setrlimit(Resource::RLIMIT_FSIZE, soft, hard).unwrap();
    denied(answer, "The permission request could not be recorded");
    assert!(rig.gate.open.lock().unwrap().is_empty(), "nobody waits for it");
    rig.gate.recorder.append(vec![], Durability::Now).await.unwrap();
    let (task, id) = rig.ask().await;
    rig.gate.decided(rig.decision(id, Decision::Allow));
    assert_eq!(task.await.unwrap(), GateAnswer::Allow, "the next one is asked as ever");
}

#[tokio::test]
async fn a_cancelled_call_withdraws_its_request() {
    let rig = Rig::new();
    let (task, id) = rig.ask().await;
    rig.cancel.cancel();
    denied(task.await.unwrap(), "cancelled");
    assert!(rig.gate.recorder.facts().open_requests.is_empty());
    rig.gate.decided(rig.decision(id, Decision::Allow));
}

#[tokio::test]
async fn the_deadline_counts_only_while_the_server_is_there() {
    let rig = Rig::new();
    let (task, _) = rig.ask().await;
    tokio::time::pause();
    let pass = async |seconds| {
        tokio::task::yield_now().await;
        tokio::time::advance(Duration::from_secs(seconds)).await;
        tokio::task::yield_now().await;
    };
    pass(100_000).await;
    assert!(!task.is_finished(), "the server is away");
    rig.link.send_replace(LinkState::Connected);
    pass(500).await;
    rig.link.send_replace(LinkState::Away);
    pass(100_000).await;
    rig.link.send_replace(LinkState::Connected);
    pass(100).await;
    assert!(!task.is_finished());
    pass(20).await;
    tokio::time::resume();
    denied(task.await.unwrap(), TIMED_OUT);
    assert!(rig.clock.worked() < Duration::from_secs(1_000), "the clock stood still");
    rig.gate.recorder.append(Vec::new(), Durability::Now).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn r10_a_file_system_that_does_not_answer_holds_neither_the_agent_nor_the_call() {
    let (asked, mut was_asked) = mpsc::unbounded_channel();
    let (mount, answers) = std::sync::mpsc::channel();
    let rig = Rig::with_paths(Arc::new(DeadMount { asked, answers: Mutex::new(answers) }));
    let gate = rig.gate.clone();
    let tool = Write::new(rig.files.clone());
    let input = json!({"file_path": "notes.txt", "content": ""});
    let context = ToolContext {
        tool_use_id: "t1".parse().unwrap(),
        cancel: rig.cancel.clone(),
        observer: Arc::new(NoObserver),
    };
    let call = tokio::spawn(async move { gate.check(&tool, &input, &context).await });
    was_asked.recv().await.expect("the disk is asked");
    // This runs on the thread of the agent, which goes on.
    assert!(!call.is_finished());
    tokio::time::advance(Duration::from_secs(11)).await;
    let GateAnswer::Deny { text, stop: false } = call.await.unwrap() else { panic!("it was let pass") };
    assert!(text.contains("the file system did not answer within 10 s"), "{text}");
    drop(mount);
}

/// A file that was read, and an edit of it that names something nearly like it.
async fn nearly(rig: &Rig) -> (PathBuf, Arc<dyn Tool>, Value) {
    let path = rig.files.root.join("f.rs");
    std::fs::write(&path, "let total = compute(price, amount);\n").unwrap();
    Read::new(rig.files.clone()).call(json!({"file_path": "f.rs"}), rig.context()).await;
    let input =
        json!({"file_path": "f.rs", "old_string": "let total = compute(prices, amount);", "new_string": "x"});
    (path, Arc::new(Edit::new(rig.files.clone())), input)
}

#[tokio::test]
async fn an_edit_of_what_is_only_alike_asks_with_both_texts_whatever_the_mode_allows() {
    for mode in [PermissionMode::AcceptEdits, PermissionMode::Default] {
        for (decision, expected) in
            [(Decision::Deny, "let total = compute(price, amount);\n"), (Decision::Allow, "x\n")]
        {
            let rig = Rig::made(Arc::new(DiskPaths), mode, false);
            let (path, tool, input) = nearly(&rig).await;
            let (task, id) = rig.asks(tool.clone(), input.clone()).await;
            let request = rig.recorded_request().await;
            let why = "what stands in line 1 (98 % alike) is like it and would be replaced";
            assert!(request["why"].as_str().is_some_and(|text| text.contains(why)), "{request:#}");
            assert_eq!(request["input"]["old_string"], input["old_string"]);
            assert_eq!(request["input"]["stands_in_the_file"], "let total = compute(price, amount);");
            assert_eq!(request["proposed_rule"], Value::Null);
            // No rule can say which text was meant.
            rig.gate.add_rule(rule(RuleBehavior::Allow, "Edit")).unwrap();
            rig.gate.set_mode(PermissionMode::BypassPermissions);
            rig.gate.decided(rig.decision(id, decision));
            let answer = task.await.unwrap();
            assert_eq!(answer == GateAnswer::Allow, decision == Decision::Allow);
            if answer == GateAnswer::Allow {
                tool.call(input, rig.context()).await;
            }
            assert_eq!(std::fs::read_to_string(path).unwrap(), expected);
        }
    }
}

#[tokio::test]
async fn where_nobody_is_asked_an_edit_of_what_is_only_alike_is_an_error() {
    for (mode, is_unattended) in
        [(PermissionMode::AcceptEdits, true), (PermissionMode::BypassPermissions, false)]
    {
        let rig = Rig::made(Arc::new(DiskPaths), mode, is_unattended);
        let (path, tool, input) = nearly(&rig).await;
        assert_eq!(rig.gate.check(tool.as_ref(), &input, &rig.context()).await, GateAnswer::Allow);
        assert!(tool.call(input, rig.context()).await.is_error);
        assert_eq!(std::fs::read_to_string(path).unwrap(), "let total = compute(price, amount);\n");
        assert!(rig.gate.recorder.facts().open_requests.is_empty());
    }
}

/// A link that a job in the sandbox turns to and fro: outside when it is looked at first, then inside, then outside.
#[derive(Default)]
struct Turning(Mutex<u32>);

impl PathResolver for Turning {
    fn resolve(&self, path: &Path) -> Option<PathBuf> {
        if !path.ends_with("w/link") {
            return DiskPaths.resolve(path);
        }
        let mut looks = self.0.lock().unwrap();
        *looks += 1;
        let name = if *looks % 2 == 1 { "key" } else { "w/ok" };
        Some(path.parent()?.parent()?.join(name))
    }

    fn names(&self, directory: &Path, most: usize) -> Option<Vec<std::ffi::OsString>> {
        DiskPaths.names(directory, most)
    }

    fn look_below(&self, directory: &Path, is_it: &dyn Fn(&Path) -> bool) -> agent_host::Look {
        DiskPaths.look_below(directory, is_it)
    }

    fn exists(&self, path: &Path) -> bool {
        DiskPaths.exists(path)
    }
}

#[tokio::test]
async fn a_link_that_turns_is_judged_where_the_tool_would_work() {
    let turning = Arc::new(Turning::default());
    let rig = Rig::made(turning.clone(), PermissionMode::BypassPermissions, false);
    rig.gate.add_rule(rule(RuleBehavior::Ask, "Edit(//**/key)")).unwrap();
    let link = rig.dir.path().canonicalize().unwrap().join("w/link");
    let input = json!({"file_path": link, "content": ""});
    let (task, id) = rig.asks(Arc::new(Write::new(rig.files.clone())), input.clone()).await;
    assert_eq!(*turning.0.lock().unwrap(), 1, "it is followed once for what is judged and done");
    // Judged again, it still leads where the person was told.
    rig.gate.set_mode(PermissionMode::BypassPermissions);
    rig.gate.decided(rig.decision(id, Decision::Allow));
    assert_eq!(task.await.unwrap(), GateAnswer::Allow);
    assert_eq!(*turning.0.lock().unwrap(), 1);
    // By then it leads to a file inside, which nobody was asked about.
    std::fs::write(link.with_file_name("ok"), "kept").unwrap();
    std::os::unix::fs::symlink("ok", &link).unwrap();
    let output = Write::new(rig.files.clone()).call(input, rig.context()).await;
    assert!(output.is_error, "{output:?}");
    assert_eq!(std::fs::read_to_string(link.with_file_name("ok")).unwrap(), "kept");
}

/// A model that is there and says nothing is as good as none (spec 5.4).
#[tokio::test]
async fn a_classifier_that_does_not_answer_is_given_up() {
    let rig = Rig::new();
    let model = ScriptedModel::new([Script::Stream(vec![Step::Hang])]);
    let classifier = Classifier::new(model.clone(), rig.gate.recorder.clone(), None, Budget::default());
    // From here on time passes when nothing else happens.
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    let verdict = classifier.judge(&CompactHistory::default(), "call", "action").await;
    let Verdict::Unavailable { why } = verdict else { panic!("{verdict:?}") };
    assert!(why.contains("30 s"), "{why}");
    assert!((Duration::from_secs(30)..Duration::from_secs(31)).contains(&began.elapsed()));
    assert_eq!(model.requests().len(), 1, "it is not asked again");
}
