//! The command line as people and scripts meet it: the real program, with pipes and with a terminal.

mod between;
mod contract;
mod errors;
mod following;
mod output;
mod permissions;
mod prompts;
mod servers;
mod solo;
mod tools;

use std::path::PathBuf;

use integration_tests::{
    ModelServer, Reply, SwarmHome, TestRepo, eventually,
    swarm::{Api, Finished, Running},
    wait::LATER,
    when,
};
use serde_json::Value;

use crate::rig::{COORDINATE, agent, call, prompt, write};

/// A home, a repository and a scripted model; no server yet. Fields drop in this order: the server ends before
/// its home is swept, and the model answers to the last.
struct Shell {
    home: SwarmHome,
    repo: TestRepo,
    model: ModelServer,
}

impl Shell {
    fn new() -> Self {
        Self::of(TestRepo::new(), ModelServer::start())
    }

    fn of(repo: TestRepo, model: ModelServer) -> Self {
        Self { home: SwarmHome::new(&model), repo, model }
    }

    /// A coordinator that starts one worker, which writes one file and ends; `gate` holds its last words.
    fn one_worker(&self, gate: Option<&str>) -> &Self {
        self.spawns(&["alpha"]);
        let last = Reply::say("Wrote alpha.txt.");
        let last = match gate {
            Some(gate) => last.hold(gate),
            None => last,
        };
        self.model.agent(&prompt("alpha"), [call(write("alpha.txt", "alpha\n")), last]);
        self
    }

    /// A coordinator that starts these workers and then has nothing to add.
    fn spawns(&self, names: &[&str]) -> &Self {
        let first = Reply::new().text("I start what is needed.");
        let first = names.iter().fold(first, |reply, name| reply.tool("Agent", agent(name)));
        self.model.agent(COORDINATE, [first]);
        self.model.rule(when().agent(COORDINATE), "All is done.");
        self
    }

    fn start(&self, arguments: &[&str]) -> Running {
        self.home.start(self.repo.path(), arguments)
    }

    async fn run(&self, arguments: &[&str]) -> Finished {
        self.home.run(self.repo.path(), arguments).await
    }

    /// The usual task, followed to its end.
    async fn done(&self) -> Finished {
        self.run(&["run", COORDINATE]).await.expect_code(0)
    }

    async fn api(&self) -> Api {
        self.home.api().await
    }

    async fn workers(&self) -> Vec<Value> {
        let workers = self.api().await.get("/workers").await;
        workers.as_array().expect("workers are a list").clone()
    }

    /// The one worker; waits until there is one.
    async fn worker(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(LATER, what, async || {
            let workers = self.workers().await;
            workers.iter().find(|worker| holds(worker)).cloned().ok_or(format!("{workers:#?}"))
        })
        .await
    }

    /// Nothing was started, made or changed.
    async fn assert_untouched(&self) {
        self.home.assert_no_processes().await;
        assert_eq!(self.home.worktrees(), [] as [PathBuf; 0]);
        assert_eq!(self.repo.branches("swarm"), [] as [&str; 0]);
        assert_eq!(self.repo.status(), "");
        assert!(self.model.requests().is_empty(), "a model was asked");
    }
}

/// An id as people type it.
fn short(worker: &Value) -> String {
    crate::rig::id_of(worker).trim_start_matches("agent-").to_owned()
}

/// One clear error: what, in one line, and what to do; nothing on stdout.
#[track_caller]
fn assert_error(finished: Finished, exit: i32, code: &str, says: &[&str]) -> Finished {
    let finished = finished.expect_code(exit);
    let stderr = &finished.stderr;
    assert_eq!(stderr.matches("error[").count(), 1, "{stderr}");
    assert!(stderr.lines().any(|line| line.starts_with(&format!("error[{code}]: "))), "{stderr}");
    for part in says {
        assert!(stderr.contains(part), "`{part}` is not said:\n{stderr}");
    }
    assert_eq!(finished.stdout, "", "{stderr}");
    finished
}
