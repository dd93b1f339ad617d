//! `TaskCreate`, `TaskUpdate`, `TaskGet`, `TaskList`: what is to be done as items that may wait for each other. They
//! are kept in the transcript, so they outlive the process and every summary.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::Arc,
};

use async_trait::async_trait;
use query_engine::ports::{Durability, Tool, ToolContext, ToolOutput};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{Value, json};
use swarm_protocol::record::{RecordBody, TaskItem, TaskItemStatus};
use tokio::sync::Mutex;

use super::parse;
use crate::record::Recorder;

/// More are no plan any more.
const MAX_ITEMS: usize = 500;
/// Characters of a subject.
const MAX_SUBJECT_CHARS: usize = 200;

/// The items of an agent.
struct Board {
    recorder: Arc<Recorder>,
    /// One change at a time.
    order: Mutex<()>,
}

/// The four, over one list.
pub fn tools(recorder: Arc<Recorder>) -> Vec<Arc<dyn Tool>> {
    let board = Arc::new(Board { recorder, order: Mutex::default() });
    let tool = |action| -> Arc<dyn Tool> { Arc::new(TaskTool { action, board: board.clone() }) };
    [Action::Create, Action::Update, Action::Get, Action::List].map(tool).into()
}

#[derive(Clone, Copy)]
enum Action {
    Create,
    Update,
    Get,
    List,
}

struct TaskTool {
    action: Action,
    board: Arc<Board>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Create {
    subject: String,
    #[serde(default)]
    description: String,
    active_form: Option<String>,
    #[serde(default, deserialize_with = "ids")]
    blocked_by: BTreeSet<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Update {
    #[serde(deserialize_with = "id")]
    task_id: u32,
    status: Option<TaskItemStatus>,
    subject: Option<String>,
    description: Option<String>,
    active_form: Option<String>,
    #[serde(default, deserialize_with = "ids")]
    add_blocked_by: BTreeSet<u32>,
    #[serde(default, deserialize_with = "ids")]
    remove_blocked_by: BTreeSet<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Get {
    #[serde(deserialize_with = "id")]
    task_id: u32,
}

/// `3`, `"3"` or `"#3"`: models write all of them.
fn id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    read_id(&Value::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

fn ids<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<u32>, D::Error> {
    let values = match Value::deserialize(deserializer)? {
        Value::Null => Vec::new(),
        Value::Array(values) => values,
        one => vec![one],
    };
    values.iter().map(read_id).collect::<Result<_, _>>().map_err(serde::de::Error::custom)
}

fn read_id(value: &Value) -> Result<u32, String> {
    let read = match value {
        Value::Number(number) => number.as_u64().and_then(|number| u32::try_from(number).ok()),
        Value::String(text) => text.trim().trim_start_matches('#').parse().ok(),
        _ => None,
    };
    read.ok_or_else(|| format!("{value} is no number of a task"))
}

type Items = BTreeMap<u32, TaskItem>;

impl Board {
    fn items(&self) -> Items {
        self.recorder.facts().tasks
    }

    async fn keep(&self, item: TaskItem) -> Result<(), String> {
        let record = RecordBody::TaskItem { item };
        let kept = self.recorder.write(vec![record], Durability::Soon).await;
        kept.map(drop).map_err(|error| format!("The task could not be kept: {error}."))
    }

    async fn create(&self, input: Create) -> Result<String, String> {
        let _order = self.order.lock().await;
        let items = self.items();
        if items.values().filter(|item| item.status != TaskItemStatus::Deleted).count() >= MAX_ITEMS {
            return Err(format!("There are {MAX_ITEMS} tasks already; no more are kept."));
        }
        let id = items.keys().next_back().map_or(1, |last| last + 1);
        let item = TaskItem {
            id,
            subject: subject(&input.subject)?,
            description: input.description,
            active_form: input.active_form,
            blocked_by: input.blocked_by,
            status: TaskItemStatus::Pending,
        };
        check_waits(&items, &item)?;
        let said = format!("Task #{id} was made: {}", item.subject);
        self.keep(item).await?;
        Ok(said)
    }

    async fn update(&self, input: Update) -> Result<String, String> {
        let _order = self.order.lock().await;
        let items = self.items();
        let mut item = find(&items, input.task_id)?.clone();
        if let Some(text) = &input.subject {
            item.subject = subject(text)?;
        }
        item.description = input.description.unwrap_or(item.description);
        item.active_form = input.active_form.or(item.active_form);
        item.status = input.status.unwrap_or(item.status);
        item.blocked_by.extend(&input.add_blocked_by);
        item.blocked_by.retain(|id| !input.remove_blocked_by.contains(id));
        check_waits(&items, &item)?;
        let waits_for = open_blockers(&items, &item);
        if input.status == Some(TaskItemStatus::InProgress) && !waits_for.is_empty() {
            return Err(format!("#{} waits for {}; do that first.", item.id, numbers(&waits_for)));
        }
        let mut said = format!("Task #{} is kept: {}", item.id, line(&items, &item));
        if matches!(input.status, Some(TaskItemStatus::Completed | TaskItemStatus::Deleted)) {
            let mut after = items.clone();
            after.insert(item.id, item.clone());
            let freed: Vec<u32> = after
                .values()
                .filter(|other| {
                    other.blocked_by.contains(&item.id) && other.status == TaskItemStatus::Pending
                })
                .filter(|other| open_blockers(&after, other).is_empty())
                .map(|other| other.id)
                .collect();
            if !freed.is_empty() {
                write!(said, "\nNothing holds up {} any more.", numbers(&freed))
                    .map_err(|error| error.to_string())?;
            }
        }
        self.keep(item).await?;
        Ok(said)
    }

    fn get(&self, id: u32) -> Result<String, String> {
        let items = self.items();
        let item = find(&items, id)?;
        let mut said = line(&items, item);
        if !item.description.is_empty() {
            said.push('\n');
            said.push_str(&item.description);
        }
        Ok(said)
    }

    fn list(&self) -> String {
        let items = self.items();
        let lines: Vec<String> = items
            .values()
            .filter(|item| item.status != TaskItemStatus::Deleted)
            .map(|item| line(&items, item))
            .collect();
        if lines.is_empty() { "There are no tasks.".to_owned() } else { lines.join("\n") }
    }
}

fn subject(text: &str) -> Result<String, String> {
    let text = text.trim();
    match text.chars().count() {
        0 => Err("A task needs a subject.".to_owned()),
        1..=MAX_SUBJECT_CHARS => Ok(text.to_owned()),
        _ => Err(format!(
            "A subject has at most {MAX_SUBJECT_CHARS} characters; the rest is for `description`."
        )),
    }
}

fn find(items: &Items, id: u32) -> Result<&TaskItem, String> {
    items.get(&id).ok_or_else(|| {
        let all: Vec<u32> = items.keys().copied().collect();
        let known =
            if all.is_empty() { "there are none".to_owned() } else { format!("there are {}", numbers(&all)) };
        format!("There is no task #{id}; {known}.")
    })
}

/// What it waits for exists, and nothing waits for itself.
fn check_waits(items: &Items, item: &TaskItem) -> Result<(), String> {
    for id in &item.blocked_by {
        if *id != item.id {
            find(items, *id)?;
        }
    }
    let mut seen = BTreeSet::new();
    let mut open: Vec<u32> = item.blocked_by.iter().copied().collect();
    while let Some(id) = open.pop() {
        if id == item.id {
            return Err(format!("#{id} would wait for itself; nothing was changed."));
        }
        if seen.insert(id) {
            open.extend(items.get(&id).into_iter().flat_map(|other| &other.blocked_by));
        }
    }
    Ok(())
}

fn open_blockers(items: &Items, item: &TaskItem) -> Vec<u32> {
    let is_open = |id: &&u32| {
        items
            .get(id)
            .is_some_and(|other| matches!(other.status, TaskItemStatus::Pending | TaskItemStatus::InProgress))
    };
    item.blocked_by.iter().filter(is_open).copied().collect()
}

fn numbers(ids: &[u32]) -> String {
    ids.iter().map(|id| format!("#{id}")).collect::<Vec<_>>().join(", ")
}

fn line(items: &Items, item: &TaskItem) -> String {
    let waits = open_blockers(items, item);
    let waits = if waits.is_empty() { String::new() } else { format!(" (waits for {})", numbers(&waits)) };
    format!("#{} [{}] {}{waits}", item.id, item.status.as_str(), item.subject)
}

/// What re-enters the conversation after a summary; none: nothing is open.
pub fn reminder(items: &BTreeMap<u32, TaskItem>) -> Option<String> {
    let open = items.values().filter(|item| item.status != TaskItemStatus::Deleted);
    let lines: Vec<String> = open.map(|item| line(items, item)).collect();
    (!lines.is_empty()).then(|| format!("Your tasks:\n{}", lines.join("\n")))
}

#[async_trait]
impl Tool for TaskTool {
    fn name(&self) -> &str {
        match self.action {
            Action::Create => "TaskCreate",
            Action::Update => "TaskUpdate",
            Action::Get => "TaskGet",
            Action::List => "TaskList",
        }
    }

    fn description(&self) -> String {
        match self.action {
            Action::Create => {
                "Adds an item to your list of tasks, for work of many steps of which some wait for others. For a short \
                 list TodoWrite is enough."
            }
            Action::Update => {
                "Changes a task: its status (pending, in_progress, completed, deleted), its words, what it waits for. \
                 What waits for an open task cannot begin."
            }
            Action::Get => "Gives one task with its description.",
            Action::List => "Gives all tasks: number, status, subject, and what they wait for.",
        }
        .to_owned()
    }

    fn input_schema(&self) -> Value {
        let text = |description: &str| json!({"type": "string", "description": description});
        let ids = |description: &str| json!({"type": "array", "items": {"type": "string"}, "description": description});
        match self.action {
            Action::Create => json!({
                "type": "object",
                "properties": {
                    "subject": text("What is to be done, in a line"),
                    "description": text("All that somebody needs to know who does it"),
                    "activeForm": text("What is shown while it is done: `Running tests`"),
                    "blockedBy": ids("Numbers of tasks that come first")
                },
                "required": ["subject"]
            }),
            Action::Update => json!({
                "type": "object",
                "properties": {
                    "taskId": text("Its number"),
                    "status": {"type": "string", "enum": ["pending", "in_progress", "completed", "deleted"]},
                    "subject": text("New subject"),
                    "description": text("New description"),
                    "activeForm": text("New words while it is done"),
                    "addBlockedBy": ids("Numbers of tasks that come first"),
                    "removeBlockedBy": ids("Numbers of tasks that need not come first any more")
                },
                "required": ["taskId"]
            }),
            Action::Get => json!({
                "type": "object",
                "properties": {"taskId": text("Its number")},
                "required": ["taskId"]
            }),
            Action::List => json!({"type": "object", "properties": {}}),
        }
    }

    fn is_read_only(&self, _: &Value) -> bool {
        matches!(self.action, Action::Get | Action::List)
    }

    fn is_concurrency_safe(&self, input: &Value) -> bool {
        self.is_read_only(input)
    }

    fn is_own_state(&self) -> bool {
        true
    }

    async fn call(&self, input: Value, _: ToolContext) -> ToolOutput {
        let answer = match self.action {
            Action::Create => match self.read(input) {
                Ok(input) => self.board.create(input).await,
                Err(problem) => Err(problem),
            },
            Action::Update => match self.read(input) {
                Ok(input) => self.board.update(input).await,
                Err(problem) => Err(problem),
            },
            Action::Get => self.read(input).and_then(|Get { task_id }| self.board.get(task_id)),
            Action::List => Ok(self.board.list()),
        };
        answer.map_or_else(ToolOutput::error, ToolOutput::text)
    }
}

impl TaskTool {
    fn read<T: DeserializeOwned>(&self, input: Value) -> Result<T, String> {
        parse(self.name(), input)
    }
}

#[cfg(test)]
mod tests {
    use agent_host::transcript::TranscriptFile;
    use query_engine::ports::NoObserver;
    use swarm_protocol::RunNumber;
    use tokio_util::sync::CancellationToken;

    use super::*;

    struct Bench {
        dir: tempfile::TempDir,
        tools: Vec<Arc<dyn Tool>>,
    }

    impl Bench {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let tools = Self::open(&dir);
            Self { dir, tools }
        }

        fn open(dir: &tempfile::TempDir) -> Vec<Arc<dyn Tool>> {
            let (file, loaded) = TranscriptFile::open_after_checkpoint(&dir.path().join("t.jsonl")).unwrap();
            tools(Arc::new(Recorder::new(file, RunNumber(1), Arc::default(), &loaded)))
        }

        async fn call(&self, name: &str, input: Value) -> Result<String, String> {
            let tool = self.tools.iter().find(|tool| tool.name() == name).unwrap();
            let context = ToolContext {
                tool_use_id: "toolu_1".parse().unwrap(),
                cancel: CancellationToken::new(),
                observer: Arc::new(NoObserver),
            };
            let output = tool.call(input, context).await;
            let text = output.content[0].as_text().unwrap().to_owned();
            if output.is_error { Err(text) } else { Ok(text) }
        }
    }

    #[tokio::test]
    async fn tasks_wait_for_each_other_and_are_there_after_a_restart() {
        let mut bench = Bench::new();
        assert_eq!(bench.call("TaskList", json!({})).await.unwrap(), "There are no tasks.");
        bench.call("TaskCreate", json!({"subject": "Read", "description": "all of it"})).await.unwrap();
        bench.call("TaskCreate", json!({"subject": "Write", "blockedBy": ["1"]})).await.unwrap();
        let early = bench.call("TaskUpdate", json!({"taskId": "2", "status": "in_progress"})).await;
        assert_eq!(early.unwrap_err(), "#2 waits for #1; do that first.");
        let done = bench.call("TaskUpdate", json!({"taskId": 1, "status": "completed"})).await.unwrap();
        assert!(done.ends_with("Nothing holds up #2 any more."), "{done}");
        // Another process reads the transcript.
        bench.tools.clear();
        bench.tools = Bench::open(&bench.dir);
        let list = bench.call("TaskList", json!({})).await.unwrap();
        assert_eq!(list, "#1 [completed] Read\n#2 [pending] Write");
        assert_eq!(
            bench.call("TaskGet", json!({"taskId": "#1"})).await.unwrap(),
            "#1 [completed] Read\nall of it"
        );
        bench.call("TaskUpdate", json!({"taskId": "2", "status": "deleted"})).await.unwrap();
        bench.call("TaskCreate", json!({"subject": "Check"})).await.unwrap();
        let list = bench.call("TaskList", json!({})).await.unwrap();
        assert_eq!(list, "#1 [completed] Read\n#3 [pending] Check", "a number is never used again");
    }

    #[tokio::test]
    async fn what_makes_no_sense_is_refused_and_changes_nothing() {
        let bench = Bench::new();
        for subject in ["a", "b"] {
            bench.call("TaskCreate", json!({"subject": subject})).await.unwrap();
        }
        bench.call("TaskUpdate", json!({"taskId": "2", "addBlockedBy": ["1"]})).await.unwrap();
        let cases = [
            ("TaskUpdate", json!({"taskId": "1", "addBlockedBy": ["2"]}), "#1 would wait for itself"),
            ("TaskUpdate", json!({"taskId": "1", "addBlockedBy": ["1"]}), "#1 would wait for itself"),
            ("TaskUpdate", json!({"taskId": "1", "addBlockedBy": ["9"]}), "no task #9; there are #1, #2"),
            ("TaskUpdate", json!({"taskId": "x"}), "no number of a task"),
            ("TaskUpdate", json!({"taskId": "1", "status": "done"}), "does not fit its schema"),
            ("TaskGet", json!({"taskId": "3"}), "no task #3"),
            ("TaskCreate", json!({"subject": "  "}), "needs a subject"),
            ("TaskCreate", json!({"subject": "x".repeat(201)}), "at most 200"),
            ("TaskCreate", json!({"subject": "c", "blockedBy": "7"}), "no task #7"),
        ];
        for (tool, input, expected) in cases {
            let refused = bench.call(tool, input.clone()).await.unwrap_err();
            assert!(refused.contains(expected), "{tool} {input}: {refused}");
        }
        let list = bench.call("TaskList", json!({})).await.unwrap();
        assert_eq!(list, "#1 [pending] a\n#2 [pending] b (waits for #1)");
    }
}
