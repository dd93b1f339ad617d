//! One line about one worker, in columns: live, in `ps`, and at the end of a run. Pure.

use swarm_protocol::{
    Timestamp, WaitingFor, WorkerId, WorkerStatus, launch::Expects, status::WAITS_FOR_PLACE,
};

use super::{
    format,
    glyph::{Class, Glyphs},
    link::Links,
    output::{DIM, paint},
    prefix::Prefixes,
    state::WorkerRow,
    text::{cut, left, right, visible, width},
};
use crate::ordinal::ordinal;

/// Cells of the columns that never change: ` 33k`, ` $0.21`, ` 2m31s`.
const TOKENS: usize = 5;
const COST: usize = 6;
const AGE: usize = 6;
const TURNS: usize = 8;
const CONTEXT: usize = 4;
const BRANCH: usize = 24;
/// The design's title column.
const TITLE: usize = 24;
/// The design's column for what it does: also holds files, lines and turns of an ended worker.
const DOING: usize = 27;

/// What rows look like in one stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look<'a> {
    pub(crate) glyphs: Glyphs,
    pub(crate) links: &'a Links,
    /// The ids of one list: how much of each is enough to name it.
    pub(crate) prefixes: &'a Prefixes,
}

impl Look<'_> {
    /// A worker's id in a column of so many cells. Cut and filled up before it is styled: an escape sequence has
    /// no width.
    fn worker(self, id: &WorkerId, cells: usize) -> String {
        let column = left(id.suffix(), cells);
        let shown = column.trim_end();
        format!(
            "{}{}",
            self.links.worker(id, &self.prefixes.paint(id.suffix(), shown)),
            &column[shown.len()..]
        )
    }
}

/// Which columns there are, and how wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    id: usize,
    title: usize,
    doing: usize,
    turns: bool,
    tokens: bool,
    cost: bool,
    context: bool,
    branch: usize,
}

impl Columns {
    /// Columns for a terminal of this width: the last column stays empty. Under 80 cells first the cost, then
    /// the tokens go, under 60 the title; glyph, id, state and age stay.
    pub(crate) fn fit(terminal_width: usize, id_width: usize) -> Self {
        let usable = terminal_width.saturating_sub(2);
        let mut columns = Self {
            id: id_width.max(3),
            title: if terminal_width >= 60 { TITLE } else { 0 },
            doing: 0,
            turns: terminal_width >= 100,
            tokens: terminal_width >= 70,
            cost: terminal_width >= 80,
            context: terminal_width >= 120,
            branch: if terminal_width >= 120 { BRANCH } else { 0 },
        };
        let mut rest = usable.saturating_sub(columns.fixed());
        // What a wide terminal has left goes to what matters: first what it does, then the title.
        if rest > 40 && columns.title > 0 {
            let more = (rest - 40) / 2;
            columns.title += more.min(24);
            rest -= more.min(24);
        }
        columns.doing = rest.max(6);
        columns
    }

    /// Columns as wide as these rows need, at least the design's: nothing is cut.
    pub(crate) fn natural(rows: &[(String, String, String)]) -> Self {
        let most = |least: usize, of: fn(&(String, String, String)) -> &String| {
            rows.iter().map(|row| width(of(row))).max().unwrap_or(0).max(least)
        };
        Self {
            id: most(3, |row| &row.0),
            title: most(TITLE, |row| &row.1),
            doing: most(DOING, |row| &row.2),
            turns: false,
            tokens: true,
            cost: true,
            context: false,
            branch: 0,
        }
    }

    /// Cells of everything but what the worker does.
    fn fixed(&self) -> usize {
        let with_gap = |cells: usize| if cells > 0 { cells + 1 } else { 0 };
        2 + self.id
            + 1
            + with_gap(self.title)
            + if self.turns { 1 + TURNS } else { 0 }
            + if self.tokens { 1 + TOKENS } else { 0 }
            + if self.cost { 1 + COST } else { 0 }
            + if self.context { 1 + CONTEXT } else { 0 }
            + with_gap(self.branch)
            + 1
            + AGE
    }

    fn line(
        &self,
        look: Look<'_>,
        glyph: &str,
        style: anstyle::Style,
        worker: &WorkerRow,
        doing: &str,
        now: Timestamp,
    ) -> String {
        let ended = worker.status.is_ended();
        let begun = ended || worker.usage.total() > 0;
        let mut line = format!("{} {} ", paint(style, glyph), look.worker(&worker.id, self.id));
        if self.title > 0 {
            line.push_str(&left(&visible(&worker.name), self.title));
            line.push(' ');
        }
        line.push_str(&left(doing, self.doing));
        if self.turns {
            let turns = if ended { String::new() } else { format::count(u64::from(worker.turns), "turn") };
            line.push(' ');
            line.push_str(&right(&turns, TURNS));
        }
        if self.tokens {
            let tokens = if begun { format::tokens(worker.usage.total()) } else { "-".to_owned() };
            line.push(' ');
            line.push_str(&right(&tokens, TOKENS));
        }
        if self.cost {
            let cost = if begun { format::money(worker.cost_usd) } else { "-".to_owned() };
            line.push(' ');
            line.push_str(&right(&cost, COST));
        }
        if self.context {
            let context = worker.context_percent().map_or_else(String::new, |percent| format!("{percent}%"));
            line.push(' ');
            line.push_str(&right(&context, CONTEXT));
        }
        line.push(' ');
        let age = worker.age(now);
        let age = if ended { format::duration(age) } else { format::age(age) };
        line.push_str(&right(&age, AGE));
        if self.branch > 0 {
            let branch = worker.branch.as_deref().map(visible).unwrap_or_default();
            line.push(' ');
            line.push_str(&paint(DIM, &super::text::cut_start(&branch, self.branch)));
        }
        line
    }
}

/// A row that lives: the glyph turns while it works.
pub(crate) fn live(
    columns: &Columns,
    look: Look<'_>,
    worker: &WorkerRow,
    asks: Option<&str>,
    now: Timestamp,
) -> String {
    let glyph = look.glyphs.live(Class::of(worker), now.as_millis());
    row(columns, look, glyph, worker, asks, now)
}

/// A row that stands still.
pub(crate) fn still(
    columns: &Columns,
    look: Look<'_>,
    worker: &WorkerRow,
    asks: Option<&str>,
    now: Timestamp,
) -> String {
    row(columns, look, look.glyphs.still(Class::of(worker)), worker, asks, now)
}

fn row(
    columns: &Columns,
    look: Look<'_>,
    glyph: &str,
    worker: &WorkerRow,
    asks: Option<&str>,
    now: Timestamp,
) -> String {
    let doing = doing(worker, asks, now);
    columns.line(look, glyph, Class::of(worker).style(), worker, &doing, now)
}

/// The row of an ended worker at the end of a run: files, lines, turns.
pub(crate) fn ended(columns: &Columns, look: Look<'_>, worker: &WorkerRow, now: Timestamp) -> String {
    let class = Class::of(worker);
    let figures = if worker.files_changed > 0 {
        format!(
            "{:<7}{:>6} {:<4}",
            format::count(worker.files_changed, "file"),
            format!("+{}", worker.insertions),
            format!("-{}", worker.deletions)
        )
    } else if worker.expects == Expects::Report {
        "report".to_owned()
    } else {
        "no change".to_owned()
    };
    let doing = with_turns(&figures, worker, columns.doing);
    columns.line(look, look.glyphs.still(class), class.style(), worker, &doing, now)
}

/// The permanent line of a worker whose run just ended.
pub(crate) fn just_ended(columns: &Columns, look: Look<'_>, worker: &WorkerRow, now: Timestamp) -> String {
    let class = Class::of(worker);
    let doing = with_turns(&how_it_ended(worker), worker, columns.doing);
    columns.line(look, look.glyphs.still(class), class.style(), worker, &doing, now)
}

fn with_turns(words: &str, worker: &WorkerRow, cells: usize) -> String {
    let turns = format::count(u64::from(worker.turns), "turn");
    let room = cells.saturating_sub(width(&turns));
    if room < 8 {
        return cut(words, cells);
    }
    format!("{}{turns}", left(&cut(words, room.saturating_sub(1)), room))
}

/// `completed, report`, `failed: model_error`.
pub(crate) fn how_it_ended(worker: &WorkerRow) -> String {
    match worker.status {
        WorkerStatus::Completed if worker.files_changed > 0 => {
            format!("completed, {}", format::count(worker.files_changed, "file"))
        }
        WorkerStatus::Completed if worker.expects == Expects::Report => "completed, report".to_owned(),
        WorkerStatus::Completed => "completed, no change".to_owned(),
        WorkerStatus::Failed => match worker.exit_reason.as_deref() {
            Some(reason) => format!("failed: {}", visible(reason)),
            None => "failed".to_owned(),
        },
        WorkerStatus::Aborted => "stopped".to_owned(),
        status => status.as_str().to_owned(),
    }
}

/// What a worker does, or waits for: one fact. `asks` is the tool it asks for.
pub(crate) fn doing(worker: &WorkerRow, asks: Option<&str>, now: Timestamp) -> String {
    let cause = visible(&worker.cause);
    match worker.status {
        WorkerStatus::Pending => match worker.position {
            Some(position) if cause.is_empty() || cause == WAITS_FOR_PLACE => {
                format!("queued, {} in line", ordinal(position))
            }
            Some(_) => format!("queued, {cause}"),
            None => "queued".to_owned(),
        },
        WorkerStatus::Starting => match visible(&worker.activity) {
            activity if activity.is_empty() => "starting".to_owned(),
            activity => format!("starting: {activity}"),
        },
        WorkerStatus::Running => match visible(&worker.activity) {
            activity if activity.is_empty() => "working".to_owned(),
            activity => activity,
        },
        WorkerStatus::Waiting => match worker.waiting_for {
            Some(WaitingFor::Permission) => match asks {
                Some(tool) => format!("waits for you: {}", visible(tool)),
                None => "waits for you".to_owned(),
            },
            Some(WaitingFor::Model) => {
                let what = if cause.is_empty() { "model busy".to_owned() } else { cause };
                match worker.until {
                    Some(until) if until > now => {
                        format!("{what} in {}", format::age(until.millis_since(now) + 999))
                    }
                    _ => what,
                }
            }
            Some(WaitingFor::OwnJobs) => "waits for its own jobs".to_owned(),
            Some(WaitingFor::Server) if cause.is_empty() => "waits for the server".to_owned(),
            Some(WaitingFor::Server) => cause,
            None if cause.is_empty() => "waits".to_owned(),
            None => cause,
        },
        WorkerStatus::Finishing => "finishing".to_owned(),
        WorkerStatus::Completed | WorkerStatus::Failed | WorkerStatus::Aborted => how_it_ended(worker),
    }
}
