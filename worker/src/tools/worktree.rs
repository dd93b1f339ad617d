//! EnterWorktree and ExitWorktree: an agent alone in its session begins in the user's checkout, where it may only look,
//! and goes into a worktree of its own to change something. A move is a restart elsewhere: the call ends the process,
//! the server makes the place ready and the run goes on there from its transcript.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use async_trait::async_trait;
use query_engine::ports::{Tool, ToolContext, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};
use swarm_protocol::record::{Move, ToolEffect};

use super::{lenient_bool, parse};
use crate::{
    shell::{JobStatus, Shell},
    tree::Tree,
};

/// Characters of a name.
const MAX_NAME_CHARS: usize = 64;
/// Changed files named in a refusal.
const MAX_FILES: usize = 10;

/// Where the agent stands, and where it is to go on.
pub struct Standing {
    /// Its worktree; none in the user's checkout.
    tree: Option<Arc<Tree>>,
    place: PathBuf,
    shell: Arc<Shell>,
    moves: OnceLock<Move>,
}

impl Standing {
    /// An agent that stands at `place`: in its worktree, if `tree` is one.
    pub fn new(tree: Option<Arc<Tree>>, place: PathBuf, shell: Arc<Shell>) -> Self {
        Self { tree, place, shell, moves: OnceLock::new() }
    }

    /// Where it goes on, once a call has said so.
    pub fn moves(&self) -> Option<&Move> {
        self.moves.get()
    }

    /// The answer that ends the process.
    fn go(&self, to: Move, text: &str) -> ToolOutput {
        // A job would end with the process, and what it was to say with it.
        let running = self.shell.jobs().into_iter().filter(|job| job.status == JobStatus::Running);
        let running: Vec<String> = running.map(|job| format!("{} ({})", job.id, job.command)).collect();
        if !running.is_empty() {
            return ToolOutput::error(format!(
                "Background jobs run here: {}. Wait for their end, or end them with KillShell; then call this again.",
                running.join(", ")
            ));
        }
        if self.shell.has_untold_ends() {
            return ToolOutput::error(
                "A background job has ended: you read of it next. Call this again after that.",
            );
        }
        if self.moves.set(to.clone()).is_err() {
            return ToolOutput::error("You are leaving this place already.");
        }
        ToolOutput { stop: true, ..ToolOutput::text(text).with_effect(ToolEffect::Moves { to }) }
    }
}

/// Both tools.
pub fn tools(standing: &Arc<Standing>) -> Vec<Arc<dyn Tool>> {
    vec![Arc::new(EnterWorktree(standing.clone())), Arc::new(ExitWorktree(standing.clone()))]
}

struct EnterWorktree(Arc<Standing>);

#[derive(Deserialize)]
struct Enter {
    #[serde(default)]
    name: Option<String>,
}

#[async_trait]
impl Tool for EnterWorktree {
    fn name(&self) -> &str {
        "EnterWorktree"
    }

    fn description(&self) -> String {
        "Goes into a git worktree of your own, on a new branch, or back into the one that you left. In the person's \
         checkout you can only look: call this before you change anything. The worktree holds the commit that the task \
         began from, not what is uncommitted in the checkout. Variables and directory of \
         your shell begin anew, and reminders are gone."
            .to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "Three to five words: what you will change; names the branch"}
            }
        })
    }

    fn is_read_only(&self, _: &Value) -> bool {
        false
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        false
    }

    fn is_own_state(&self) -> bool {
        true
    }

    async fn call(&self, input: Value, _: ToolContext) -> ToolOutput {
        let name = match parse::<Enter>("EnterWorktree", input) {
            Ok(Enter { name }) => name.filter(|name| !name.trim().is_empty()),
            Err(problem) => return ToolOutput::error(problem),
        };
        if self.0.tree.is_some() {
            let place = self.0.place.display();
            return ToolOutput::error(format!("You are in your worktree already: {place}."));
        }
        let name = name.map(|name| name.trim().to_owned());
        if name
            .as_ref()
            .is_some_and(|name| name.chars().count() > MAX_NAME_CHARS || name.chars().any(char::is_control))
        {
            return ToolOutput::error(format!(
                "A name has at most {MAX_NAME_CHARS} characters, on one line."
            ));
        }
        self.0.go(Move::Worktree { name }, "You go on in a worktree of your own.")
    }
}

struct ExitWorktree(Arc<Standing>);

#[derive(Deserialize)]
struct Exit {
    action: Action,
    #[serde(default, deserialize_with = "lenient_bool")]
    discard_changes: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    Keep,
    Remove,
}

#[async_trait]
impl Tool for ExitWorktree {
    fn name(&self) -> &str {
        "ExitWorktree"
    }

    fn description(&self) -> String {
        "Goes back to the person's checkout, where you can only look. `keep` commits what is uncommitted and leaves the \
         branch to be reviewed. `remove` takes worktree and branch away; where there are changes it needs \
         `discard_changes`, which a person has to allow. You need not leave to end: your work is committed then, too."
            .to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": ["keep", "remove"]},
                "discard_changes": {"type": "boolean", "description": "With `remove`: also what was changed goes"}
            },
            "required": ["action"]
        })
    }

    /// What throws work away needs a person's word.
    fn is_read_only(&self, input: &Value) -> bool {
        serde_json::from_value::<Exit>(input.clone()).is_ok_and(|exit| !exit.discard_changes)
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        false
    }

    async fn call(&self, input: Value, _: ToolContext) -> ToolOutput {
        let Exit { action, discard_changes } = match parse("ExitWorktree", input) {
            Ok(exit) => exit,
            Err(problem) => return ToolOutput::error(problem),
        };
        let Some(tree) = &self.0.tree else {
            return ToolOutput::error("You are in the person's checkout; there is no worktree to leave.");
        };
        if action == Action::Keep {
            return self.0.go(
                Move::Checkout { discard: false },
                "You go on in the person's checkout; your branch stays as it is.",
            );
        }
        match tree.changes(MAX_FILES).await {
            Err(problem) => {
                ToolOutput::error(format!("Nothing was removed: git cannot say what would go: {problem}."))
            }
            Ok(Some(changes)) if !discard_changes => ToolOutput::error(format!(
                "Nothing was removed, for this would go with it: {changes}. Keep the worktree, or call this with \
                 `discard_changes`."
            )),
            Ok(_) => self.0.go(
                Move::Checkout { discard: true },
                "You go on in the person's checkout; worktree and branch are removed.",
            ),
        }
    }
}
