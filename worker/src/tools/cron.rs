//! CronCreate, CronDelete, CronList: reminders that an agent sets for itself. At its time a reminder's prompt enters
//! the agent's inbox, as any message does. They are kept in this process alone and end with the run: nothing of them is
//! on disk, and a run that has nothing left to do ends without waiting for them.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use croner::{
    Cron,
    parser::{CronParser, Seconds, Year},
};
use jiff::{Unit, ZonedDateTime};
use query_engine::ports::{Tool, ToolContext, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::{lenient_bool, parse};

/// Reminders of one agent.
const MAX_REMINDERS: usize = 20;
const MAX_PROMPT_CHARS: usize = 4_000;
/// The clock of the wall may be set, so it is looked at this often at least.
/// Between two looks at the clock.
const LEAST_WAIT: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// What time it is.
pub type WallClock = Arc<dyn Fn() -> ZonedDateTime + Send + Sync>;
/// Takes a text to the agent's inbox.
pub type Deliver = Arc<dyn Fn(String) + Send + Sync>;

/// The reminders of a run, and the task that delivers them; it ends when this is dropped.
pub struct Reminders {
    table: Arc<Table>,
    _delivering: AbortOnDropHandle<()>,
}

struct Table {
    reminders: Mutex<BTreeMap<u64, Reminder>>,
    n_created: AtomicU64,
    clock: WallClock,
    changed: Notify,
}

struct Reminder {
    cron: Cron,
    prompt: String,
    recurring: bool,
    next: ZonedDateTime,
}

impl Reminders {
    /// With none yet.
    pub fn start(clock: WallClock, deliver: Deliver) -> Arc<Self> {
        let table = Arc::new(Table {
            reminders: Mutex::default(),
            n_created: AtomicU64::new(0),
            clock,
            changed: Notify::new(),
        });
        let delivering = AbortOnDropHandle::new(tokio::spawn(table.clone().run(deliver)));
        Arc::new(Self { table, _delivering: delivering })
    }

    /// The three tools.
    pub fn tools(self: &Arc<Self>) -> Vec<Arc<dyn Tool>> {
        [Action::Create, Action::Delete, Action::List]
            .map(|action| -> Arc<dyn Tool> { Arc::new(CronTool { reminders: self.clone(), action }) })
            .to_vec()
    }
}

impl Table {
    fn locked(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Reminder>> {
        self.reminders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(self: Arc<Self>, deliver: Deliver) {
        loop {
            let now = (self.clock)();
            for text in self.take_due(&now) {
                deliver(text);
            }
            let next = self.locked().values().map(|reminder| reminder.next.clone()).min();
            let wait = next.map_or(LOOK_AGAIN, |next| {
                // What is due in the past by a change of clocks is no reason to spin.
                Duration::try_from(next.duration_since(&now))
                    .unwrap_or_default()
                    .clamp(LEAST_WAIT, LOOK_AGAIN)
            });
            // A change that comes between the look and the wait leaves its mark in `changed`.
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// What is due now. A recurring one is put to its next time after now: what was missed is not made up for.
    fn take_due(&self, now: &ZonedDateTime) -> Vec<String> {
        let mut texts = Vec::new();
        self.locked().retain(|id, reminder| {
            if reminder.next > *now {
                return true;
            }
            texts.push(format!(
                "<system-reminder>\nYour own reminder cron-{id} ({}), set by you in this run, is due:\n{}\n</system-reminder>",
                reminder.cron.as_str(),
                reminder.prompt
            ));
            match next_time(&reminder.cron, now) {
                Ok(next) if reminder.recurring => {
                    reminder.next = next;
                    true
                }
                _ => false,
            }
        });
        texts
    }

    fn create(&self, input: &Value) -> Result<String, String> {
        let Create { cron: text, prompt, recurring } = parse("CronCreate", input.clone())?;
        let prompt = prompt.trim();
        if prompt.is_empty() || prompt.chars().count() > MAX_PROMPT_CHARS {
            return Err(format!("prompt must have 1 to {MAX_PROMPT_CHARS} characters."));
        }
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let cron = parser.parse(text.trim()).map_err(|error| {
            format!("`{text}` is no cron expression: {error}. It has five fields: minute, hour, day of month, month, day of week.")
        })?;
        let next = next_time(&cron, &(self.clock)())?;
        let mut reminders = self.locked();
        if reminders.len() >= MAX_REMINDERS {
            return Err(format!("There are {MAX_REMINDERS} reminders already; delete one first."));
        }
        let id = self.n_created.fetch_add(1, Ordering::Relaxed) + 1;
        let said = format!(
            "Set as cron-{id}; due {}{}. It ends with this run.",
            shown(&next),
            if recurring { ", and again" } else { "" }
        );
        reminders.insert(id, Reminder { cron, prompt: prompt.to_owned(), recurring, next });
        drop(reminders);
        self.changed.notify_one();
        Ok(said)
    }

    fn delete(&self, input: &Value) -> Result<String, String> {
        let Delete { id } = parse("CronDelete", input.clone())?;
        let number = id.trim().strip_prefix("cron-").unwrap_or(id.trim()).parse::<u64>();
        let removed = number.ok().and_then(|number| self.locked().remove(&number));
        match removed {
            Some(_) => Ok(format!("{id} was deleted.")),
            None => Err(format!("There is no reminder {id}. {}", self.list())),
        }
    }

    fn list(&self) -> String {
        let reminders = self.locked();
        if reminders.is_empty() {
            return "There are no reminders.".to_owned();
        }
        let mut out = String::new();
        for (id, reminder) in reminders.iter() {
            let kind = if reminder.recurring { "recurring" } else { "once" };
            let prompt: String = reminder.prompt.chars().take(200).collect();
            let _ = writeln!(
                out,
                "cron-{id}: {} ({kind}), due {}: {prompt}",
                reminder.cron.as_str(),
                shown(&reminder.next)
            );
        }
        out
    }
}

/// The next time after `after` on the wall's clock.
fn next_time(cron: &Cron, after: &ZonedDateTime) -> Result<ZonedDateTime, String> {
    // The clock on the wall as if it were that of UTC: patterns speak of it.
    let civil = after.datetime();
    let seconds = civil
        .to_zoned_datetime(jiff::tz::TimeZone::UTC)
        .map_err(|error| error.to_string())?
        .timestamp()
        .as_second();
    let start = chrono::DateTime::from_timestamp(seconds, 0).ok_or("the clock is out of range")?;
    let next = cron
        .find_next_occurrence(&start.naive_utc(), false)
        .map_err(|error| format!("There is no time that fits: {error}."))?;
    let civil = jiff::Timestamp::from_second(next.and_utc().timestamp())
        .map_err(|error| error.to_string())?
        .to_zoned_datetime(jiff::tz::TimeZone::UTC)
        .datetime();
    // An hour that the change of clocks leaves out is the one after it.
    let ambiguous = after.time_zone().to_ambiguous_zoned_datetime(civil);
    let first = ambiguous.clone().compatible().map_err(|error| error.to_string())?;
    if first > *after {
        return Ok(first);
    }
    // In the hour that clocks repeat, the first of two such times may be over.
    ambiguous.later().map_err(|error| error.to_string())
}

fn shown(time: &ZonedDateTime) -> String {
    time.round(Unit::Second)
        .map_or_else(|_| time.to_string(), |time| time.strftime("%Y-%m-%d %H:%M %Z").to_string())
}

#[derive(Deserialize)]
struct Create {
    cron: String,
    prompt: String,
    #[serde(default, deserialize_with = "lenient_bool")]
    recurring: bool,
}

#[derive(Deserialize)]
struct Delete {
    id: String,
}

#[derive(Clone, Copy)]
enum Action {
    Create,
    Delete,
    List,
}

struct CronTool {
    reminders: Arc<Reminders>,
    action: Action,
}

#[async_trait]
impl Tool for CronTool {
    fn name(&self) -> &str {
        match self.action {
            Action::Create => "CronCreate",
            Action::Delete => "CronDelete",
            Action::List => "CronList",
        }
    }

    fn description(&self) -> String {
        match self.action {
            Action::Create => {
                "Sets a reminder for yourself: at its time the prompt comes to you as a message, between two turns. It \
                 ends with this run, and does not keep the run from ending: use Sleep to wait. For once, or again and \
                 again with `recurring`. At most 20."
            }
            Action::Delete => "Deletes one of your reminders.",
            Action::List => "Lists your reminders and when they are due.",
        }
        .to_owned()
    }

    fn input_schema(&self) -> Value {
        match self.action {
            Action::Create => json!({
                "type": "object",
                "properties": {
                    "cron": {"type": "string", "description": "Minute, hour, day of month, month, day of week, in local time: `*/10 * * * *`"},
                    "prompt": {"type": "string"},
                    "recurring": {"type": "boolean", "description": "Again and again; else once"}
                },
                "required": ["cron", "prompt"]
            }),
            Action::Delete => json!({
                "type": "object",
                "properties": {"id": {"type": "string", "description": "cron-1"}},
                "required": ["id"]
            }),
            Action::List => json!({"type": "object", "properties": {}}),
        }
    }

    fn is_read_only(&self, _: &Value) -> bool {
        matches!(self.action, Action::List)
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        matches!(self.action, Action::List)
    }

    fn is_own_state(&self) -> bool {
        true
    }

    fn should_defer(&self) -> bool {
        true
    }

    fn search_hint(&self) -> &str {
        "reminder, schedule, timer, later, periodically"
    }

    async fn call(&self, input: Value, _: ToolContext) -> ToolOutput {
        let table = &self.reminders.table;
        let answer = match self.action {
            Action::Create => table.create(&input),
            Action::Delete => table.delete(&input),
            Action::List => Ok(table.list()),
        };
        answer.map_or_else(ToolOutput::error, ToolOutput::text)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{sync::mpsc, time::Instant};

    use super::*;

    /// Reminders whose clock begins at `start` and goes with tokio's.
    fn reminders(start: &str) -> (Arc<Reminders>, mpsc::UnboundedReceiver<String>) {
        let (start, begin): (ZonedDateTime, _) = (start.parse().unwrap(), Instant::now());
        let clock: WallClock =
            Arc::new(move || &start + jiff::SignedDuration::try_from(begin.elapsed()).unwrap());
        let (sender, inbox) = mpsc::unbounded_channel();
        (Reminders::start(clock, Arc::new(move |text| sender.send(text).unwrap_or_default())), inbox)
    }

    #[tokio::test(start_paused = true)]
    async fn a_reminder_comes_at_its_time_once_or_again() {
        let (own, mut inbox) = reminders("2026-03-01T11:58:30+00:00[UTC]");
        let begin = Instant::now();
        let said = own.table.create(&json!({"cron": "0 12 * * *", "prompt": "noon"})).unwrap();
        assert_eq!(said, "Set as cron-1; due 2026-03-01 12:00 UTC. It ends with this run.");
        own.table.create(&json!({"cron": "*/5 * * * *", "prompt": "look", "recurring": true})).unwrap();
        let mut came = Vec::new();
        for _ in 0..4 {
            let text = inbox.recv().await.unwrap();
            came.push((begin.elapsed().as_secs(), text.lines().nth(2).unwrap().to_owned()));
        }
        let look = |at| (at, "look".to_owned());
        assert_eq!(came, [(90, "noon".to_owned()), look(90), look(390), look(690)]);
        assert_eq!(own.table.list(), "cron-2: */5 * * * * (recurring), due 2026-03-01 12:15 UTC: look\n");
        assert_eq!(own.table.delete(&json!({"id": "cron-2"})).unwrap(), "cron-2 was deleted.");
        assert_eq!(own.table.list(), "There are no reminders.");
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(inbox.try_recv().is_err(), "what was deleted comes no more");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_reminder_is_refused_with_a_word() {
        let (own, _inbox) = reminders("2026-03-01T12:00:00+00:00[UTC]");
        for (input, words) in [
            (json!({"cron": "every day", "prompt": "x"}), "is no cron expression"),
            (json!({"cron": "* * * * * *", "prompt": "x"}), "is no cron expression"),
            (json!({"cron": "99 * * * *", "prompt": "x"}), "is no cron expression"),
            (json!({"cron": "0 0 30 2 *", "prompt": "x"}), "no time that fits"),
            (json!({"cron": "* * * * *", "prompt": " "}), "1 to 4000 characters"),
            (json!({"cron": "* * * * *"}), "does not fit its schema"),
        ] {
            let problem = own.table.create(&input).unwrap_err();
            assert!(problem.contains(words), "{problem}");
        }
        for _ in 0..MAX_REMINDERS {
            own.table.create(&json!({"cron": "0 0 1 1 *", "prompt": "x"})).unwrap();
        }
        let problem = own.table.create(&json!({"cron": "0 0 1 1 *", "prompt": "x"})).unwrap_err();
        assert!(problem.contains("20 reminders already"), "{problem}");
        assert!(own.table.delete(&json!({"id": "cron-77"})).unwrap_err().contains("no reminder cron-77"));
    }

    #[test]
    fn times_are_those_of_the_clock_on_the_wall() {
        let next = |cron: &str, after: &str| {
            next_time(&cron.parse().unwrap(), &after.parse().unwrap()).unwrap().to_string()
        };
        assert_eq!(
            next("30 9 * * 1", "2026-06-05T10:00:00+02:00[Europe/Berlin]"),
            "2026-06-08T09:30:00+02:00[Europe/Berlin]"
        );
        // The night the clocks are put forward has no half past two.
        assert_eq!(
            next("30 2 * * *", "2026-03-29T01:00:00+01:00[Europe/Berlin]"),
            "2026-03-29T03:30:00+02:00[Europe/Berlin]"
        );
    }

    /// The clocks of Berlin went from 03:00 back to 02:00 on this day: half an hour later in the second pass.
    #[tokio::test(start_paused = true)]
    async fn in_the_hour_that_clocks_repeat_a_reminder_comes_once_and_later() {
        let (own, mut inbox) = reminders("2026-10-25T02:10:30+01:00[Europe/Berlin]");
        let begin = Instant::now();
        own.table.create(&json!({"cron": "*/15 * * * *", "prompt": "look", "recurring": true})).unwrap();
        inbox.recv().await.unwrap();
        assert_eq!(begin.elapsed().as_secs(), 270);
        inbox.recv().await.unwrap();
        assert_eq!(begin.elapsed().as_secs(), 270 + 15 * 60);
    }
}
