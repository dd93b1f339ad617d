//! What only a person can say: `AskUserQuestion`, and the plan mode with `EnterPlanMode` and `ExitPlanMode` (spec 4.8).
//! The requests go to the desk like all others, but no rule, hook or classifier has a word about them.

use std::{
    collections::HashMap,
    io::Read as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use query_engine::ports::{Durability, Tool, ToolContext, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};
use swarm_protocol::{
    permission::{Decision, PermissionMode},
    record::RecordBody,
};

use super::{parse, place::Place};
use crate::{gate::WorkerGate, record::Recorder};

/// Where plans are written, below the worktree.
const PLANS: &str = ".claude/plans";
/// Questions of one call.
const MAX_QUESTIONS: usize = 4;
/// Options of one question.
const OPTIONS: std::ops::RangeInclusive<usize> = 2..=6;
/// Plans of one name, and bytes of one that is compared.
const MAX_SAME_NAMES: u32 = 100;
const MAX_PLAN_BYTES: u64 = 4 * 1024 * 1024;
/// Characters of a plan's name.
const MAX_NAME_CHARS: usize = 60;

/// What an agent says while it plans.
const RULES: &str = "Plan mode: look, think and write the plan; change nothing. Edits and commands that write are refused until \
                     a person has accepted the plan, which ExitPlanMode shows them.";

/// The tools of a worker that somebody watches.
pub fn tools(
    gate: &Arc<WorkerGate>,
    recorder: &Arc<Recorder>,
    root: PathBuf,
    changes: bool,
) -> Vec<Arc<dyn Tool>> {
    let mut tools: Vec<Arc<dyn Tool>> = vec![Arc::new(AskUserQuestion(gate.clone()))];
    if changes {
        tools.push(Arc::new(EnterPlanMode { gate: gate.clone(), recorder: recorder.clone() }));
        tools.push(Arc::new(ExitPlanMode {
            gate: gate.clone(),
            recorder: recorder.clone(),
            root,
            own: Arc::default(),
        }));
    }
    tools
}

struct AskUserQuestion(Arc<WorkerGate>);

#[derive(Deserialize)]
struct Questions {
    questions: Vec<Question>,
}

#[derive(Deserialize)]
struct Question {
    question: String,
    #[serde(default)]
    options: Vec<Choice>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Choice {
    Label(String),
    Described { label: String },
}

impl Choice {
    fn label(&self) -> &str {
        match self {
            Self::Label(label) | Self::Described { label } => label,
        }
    }
}

impl Questions {
    fn check(&self) -> Result<(), String> {
        if self.questions.is_empty() || self.questions.len() > MAX_QUESTIONS {
            return Err(format!(
                "Ask one to {MAX_QUESTIONS} questions at once, not {}.",
                self.questions.len()
            ));
        }
        for question in &self.questions {
            if question.question.trim().is_empty() {
                return Err("A question has no words.".to_owned());
            }
            let options = question.options.len();
            if options != 0 && !OPTIONS.contains(&options) {
                let (least, most) = (OPTIONS.start(), OPTIONS.end());
                return Err(format!(
                    "A question has {least} to {most} options, or none for free words; not {options}."
                ));
            }
            if question.options.iter().any(|choice| choice.label().trim().is_empty()) {
                return Err(format!("An option of `{}` has no words.", question.question));
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Tool for AskUserQuestion {
    fn name(&self) -> &str {
        "AskUserQuestion"
    }

    fn description(&self) -> String {
        "Asks the person who gave the task, and waits for the answer. For decisions that are theirs and that you cannot \
         find out: what to build, which of two ways. Not for permission, and not for what the code says."
            .to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "questions": {
                    "type": "array", "minItems": 1, "maxItems": MAX_QUESTIONS,
                    "items": {
                        "type": "object",
                        "properties": {
                            "question": {"type": "string"},
                            "header": {"type": "string", "description": "One or two words for a label"},
                            "multiSelect": {"type": "boolean", "description": "Whether several options may be chosen"},
                            "options": {
                                "type": "array",
                                "items": {
                                    "type": "object",
                                    "properties": {
                                        "label": {"type": "string"},
                                        "description": {"type": "string", "description": "What choosing it means"},
                                        "preview": {"type": "string", "description": "How it would look"}
                                    },
                                    "required": ["label"]
                                }
                            }
                        },
                        "required": ["question"]
                    }
                }
            },
            "required": ["questions"]
        })
    }

    fn is_read_only(&self, _: &Value) -> bool {
        true
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        true
    }

    async fn call(&self, input: Value, context: ToolContext) -> ToolOutput {
        let questions: Questions = match parse(self.name(), input.clone()) {
            Ok(questions) => questions,
            Err(problem) => return ToolOutput::error(problem),
        };
        if let Err(problem) = questions.check() {
            return ToolOutput::error(problem);
        }
        match self.0.ask_person(self.name(), &input, &context, "The agent has a question.").await {
            Ok(decision) => match (decision.decision, decision.reason.as_deref().map(str::trim)) {
                (_, Some(words)) if !words.is_empty() => ToolOutput {
                    stop: decision.stop,
                    ..ToolOutput::text(format!("The person answers: {words}"))
                },
                (Decision::Allow, _) => ToolOutput::text(
                    "The person has read it and leaves the choice to you: decide, and say how.",
                ),
                (Decision::Deny, _) => ToolOutput {
                    stop: decision.stop,
                    ..ToolOutput::error(
                        "The person does not want to answer. Decide what is safest, and say how.",
                    )
                },
            },
            Err(text) => ToolOutput::error(format!("{text} Decide what is safest, and say how.")),
        }
    }
}

struct EnterPlanMode {
    gate: Arc<WorkerGate>,
    recorder: Arc<Recorder>,
}

#[async_trait]
impl Tool for EnterPlanMode {
    fn name(&self) -> &str {
        "EnterPlanMode"
    }

    fn description(&self) -> String {
        "Goes over to planning: from then on nothing is changed until a person has accepted the plan. For work whose way \
         is not obvious and costly to take back."
            .to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({"type": "object", "properties": {}})
    }

    fn is_read_only(&self, _: &Value) -> bool {
        true
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        false
    }

    fn should_defer(&self) -> bool {
        true
    }

    fn search_hint(&self) -> &str {
        "plan before changing, read-only, have a plan approved"
    }

    async fn call(&self, _: Value, _: ToolContext) -> ToolOutput {
        if self.gate.mode() == PermissionMode::Plan {
            return ToolOutput::text(format!("You plan already. {RULES}"));
        }
        let record = RecordBody::PlanMode { is_on: true, path: None };
        if let Err(error) = self.recorder.write(vec![record], Durability::Now).await {
            return ToolOutput::error(format!("Plan mode could not be recorded: {error}."));
        }
        self.gate.set_mode(PermissionMode::Plan);
        ToolOutput::text(RULES)
    }
}

/// The plans that this process wrote, by their names.
type OwnPlans = HashMap<String, String>;

struct ExitPlanMode {
    own: Arc<Mutex<OwnPlans>>,
    gate: Arc<WorkerGate>,
    recorder: Arc<Recorder>,
    root: PathBuf,
}

#[derive(Deserialize)]
struct Plan {
    plan: String,
    #[serde(default)]
    name: Option<String>,
}

impl Plan {
    /// The name of its file, from what it is called or its first words.
    fn file_name(&self) -> String {
        let words = self.name.as_deref().filter(|name| !name.trim().is_empty()).unwrap_or(&self.plan);
        let mut name = String::new();
        for character in words.chars() {
            if name.len() >= MAX_NAME_CHARS || (character == '\n' && !name.is_empty()) {
                break;
            }
            match character.to_ascii_lowercase() {
                plain @ ('a'..='z' | '0'..='9') => name.push(plain),
                _ if !name.is_empty() && !name.ends_with('-') => name.push('-'),
                _ => {}
            }
        }
        let name = name.trim_matches('-');
        format!("{}.md", if name.is_empty() { "plan" } else { name })
    }
}

impl ExitPlanMode {
    async fn exit(&self, input: &Value, plan: Plan, context: &ToolContext) -> Result<ToolOutput, String> {
        if self.gate.mode() != PermissionMode::Plan {
            return Err("You do not plan now, so there is nothing to leave.".to_owned());
        }
        if plan.plan.trim().is_empty() {
            return Err("The plan is empty.".to_owned());
        }
        let name = plan.file_name();
        let text = format!("{}\n", plan.plan.trim_end());
        let (root, own) = (self.root.clone(), self.own.clone());
        let written = tokio::task::spawn_blocking(move || write_plan(&root, &name, &text, &own)).await;
        let name = written
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(|error| format!("The plan could not be written below {PLANS}: {error}."))?;
        let shown = format!("{PLANS}/{name}");
        let asked = self.gate.ask_person(self.name(), input, context, "The agent shows its plan.").await;
        let decision = asked.map_err(|text| format!("{text} You go on planning; the plan is in {shown}."))?;
        let words = decision.reason.as_deref().map(str::trim).filter(|words| !words.is_empty());
        if decision.decision == Decision::Deny {
            let words = words.map(|words| format!(" and says: {words}")).unwrap_or_default();
            return Ok(ToolOutput {
                stop: decision.stop,
                ..ToolOutput::error(format!(
                    "The person does not accept the plan{words}. You go on planning."
                ))
            });
        }
        let record = RecordBody::PlanMode { is_on: false, path: Some(shown.clone()) };
        self.recorder
            .write(vec![record], Durability::Now)
            .await
            .map_err(|error| format!("The end of plan mode could not be recorded: {error}."))?;
        self.gate.leave_plan();
        let words = words.map(|words| format!(" They add: {words}")).unwrap_or_default();
        Ok(ToolOutput::text(format!("The plan is accepted and stands in {shown}; carry it out.{words}")))
    }
}

/// Writes below the root and nowhere else: no part of the way may be a link. A plan of this name that is not of this
/// agent's stays, and this one gets a number. The answer is its name.
fn write_plan(root: &Path, name: &str, text: &str, own: &Mutex<OwnPlans>) -> std::io::Result<String> {
    let directory = root.canonicalize()?.join(PLANS);
    let mut own = own.lock().unwrap_or_else(PoisonError::into_inner);
    let stem = name.strip_suffix(".md").unwrap_or(name);
    let names =
        std::iter::once(name.to_owned()).chain((2..=MAX_SAME_NAMES).map(|n| format!("{stem}-{n}.md")));
    for name in names {
        let place = Place::made(&directory.join(&name))?;
        let may_replace = match std::fs::symlink_metadata(place.path()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
            Err(error) => return Err(error),
            Ok(metadata) if !metadata.is_file() => false,
            Ok(_) => {
                let mut there = String::new();
                place.open_for_reading()?.take(MAX_PLAN_BYTES).read_to_string(&mut there).is_ok()
                    && (there == text || own.get(&name) == Some(&there))
            }
        };
        if may_replace {
            agent_host::replace_file(&place.path(), 0o644, text.as_bytes())?;
            own.insert(name.clone(), text.to_owned());
            return Ok(name);
        }
    }
    Err(std::io::Error::other("there are too many plans of this name"))
}

#[async_trait]
impl Tool for ExitPlanMode {
    fn name(&self) -> &str {
        "ExitPlanMode"
    }

    fn description(&self) -> String {
        "Shows your plan to a person and waits for their word. Accepted, plan mode ends and you carry it out."
            .to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "plan": {"type": "string", "description": "The plan, as markdown"},
                "name": {"type": "string", "description": "A few words for its file"}
            },
            "required": ["plan"]
        })
    }

    /// It writes the plan and nothing else, which plan mode allows.
    fn is_read_only(&self, _: &Value) -> bool {
        false
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        false
    }

    fn is_own_state(&self) -> bool {
        true
    }

    async fn call(&self, input: Value, context: ToolContext) -> ToolOutput {
        let plan: Plan = match parse(self.name(), input.clone()) {
            Ok(plan) => plan,
            Err(problem) => return ToolOutput::error(problem),
        };
        self.exit(&input, plan, &context).await.unwrap_or_else(ToolOutput::error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_written_below_the_root_and_over_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        for path in [&root, &outside] {
            std::fs::create_dir(path).unwrap();
        }
        let own = Mutex::default();
        let write = |name: &str, text: &str| write_plan(&root, name, text, &own);
        let read = |name: &str| std::fs::read_to_string(root.join(PLANS).join(name)).unwrap();
        std::os::unix::fs::symlink(&outside, root.join(".claude")).unwrap();
        assert!(write("plan.md", "x").is_err());
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0, "nothing is made on the way");
        std::fs::remove_file(root.join(".claude")).unwrap();
        assert_eq!(write("plan.md", "x").unwrap(), "plan.md");
        // Its own plan is written anew, somebody else's is not.
        assert_eq!(write("plan.md", "better").unwrap(), "plan.md");
        std::fs::write(root.join(PLANS).join("plan.md"), "a person's").unwrap();
        assert_eq!(write("plan.md", "best").unwrap(), "plan-2.md");
        assert_eq!(write("plan.md", "best of all").unwrap(), "plan-2.md");
        assert_eq!((read("plan.md").as_str(), read("plan-2.md").as_str()), ("a person's", "best of all"));
        // A link is not written through.
        std::os::unix::fs::symlink(outside.join("made"), root.join(PLANS).join("other.md")).unwrap();
        assert_eq!(write("other.md", "y").unwrap(), "other-2.md");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn a_plan_is_named_by_its_name_or_its_first_line() {
        let name = |plan: &str, name: Option<&str>| {
            Plan { plan: plan.to_owned(), name: name.map(str::to_owned) }.file_name()
        };
        assert_eq!(name("# Split the parser\nthen", None), "split-the-parser.md");
        assert_eq!(name("x", Some("../../etc/passwd")), "etc-passwd.md");
        assert_eq!(name("x", Some("  ")), "x.md");
        assert_eq!(name("方案", None), "plan.md");
        assert_eq!(name(&"word ".repeat(40), None).len(), 60 + 3 - 1);
    }

    #[test]
    fn questions_are_few_and_have_words() {
        let check =
            |value: Value| serde_json::from_value::<Questions>(value).map_err(|e| e.to_string())?.check();
        let ask = |options: Value| json!({"questions": [{"question": "Which?", "options": options}]});
        assert_eq!(check(ask(json!([{"label": "a", "description": "x"}, "b"]))), Ok(()));
        assert_eq!(check(json!({"questions": [{"question": "What is it called?"}]})), Ok(()));
        for bad in [
            json!({"questions": []}),
            json!({"questions": vec![json!({"question": "x"}); 5]}),
            json!({"questions": [{"question": " "}]}),
            ask(json!(["one"])),
            ask(json!(["a", " "])),
            ask(json!(["a", "b", "c", "d", "e", "f", "g"])),
        ] {
            assert!(check(bad.clone()).is_err(), "{bad}");
        }
    }
}
