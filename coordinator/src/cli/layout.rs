//! The live block as a pure function of state, size and time: no row wider than the terminal but one cell, no
//! block taller than the terminal but two rows.

use swarm_protocol::{SessionState, Timestamp, WorkerId};

use super::{
    format,
    glyph::{Class, Glyphs},
    keys::Keys,
    link::Links,
    output::{BOLD, DIM, YELLOW, paint},
    prefix::Prefixes,
    rows::{self, Columns, Look},
    state::{Ask, StateView, WorkerRow},
    text::{cut, visible, visible_lines, width, wrap},
};

/// Everything a picture is made from.
#[derive(Debug)]
pub(crate) struct Picture<'a> {
    pub(crate) state: &'a StateView,
    pub(crate) keys: &'a Keys,
    /// The session was asked to stop.
    pub(crate) stopping: bool,
    /// The server is away and is being looked for.
    pub(crate) reconnecting: bool,
    /// Whether keys are read at all.
    pub(crate) has_keyboard: bool,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) now: Timestamp,
    pub(crate) glyphs: Glyphs,
}

/// Rows of the block.
pub(crate) fn block(picture: &Picture<'_>) -> Vec<String> {
    let cells = picture.width.saturating_sub(1).max(1);
    let most = picture.height.saturating_sub(2).max(1);
    let state = picture.state;

    let mut above = Vec::new();
    if !state.words.half().is_empty() {
        above.push(cut(&visible(state.words.half()), cells));
    }
    let prompt = match state.asks.first().filter(|_| picture.has_keyboard) {
        Some(ask) => prompt(picture, ask, cells),
        None => Vec::new(),
    };
    let footer = footer(picture, cells);

    let mut others: Vec<&WorkerRow> = Vec::new();
    let mut needy: Vec<&WorkerRow> = Vec::new();
    for worker in state.workers.iter().filter(|worker| !worker.status.is_ended()) {
        if Class::of(worker) == Class::NeedsYou { needy.push(worker) } else { others.push(worker) }
    }
    // The prompt is about the first request: who asks it stands right above it.
    if let Some(ask) = state.asks.first() {
        needy.sort_by_key(|worker| worker.id == ask.request.worker_id);
    }
    // What waits for a place is the first to be left out.
    others.sort_by_key(|worker| Class::of(worker) == Class::Queued);

    let room = most.saturating_sub(above.len() + prompt.len() + footer.len());
    let room_for_others = room.saturating_sub(needy.len());
    let (shown, left_out) = fit(&others, room_for_others);
    let needy_shown = needy.len().min(room.saturating_sub(shown.len() + usize::from(!left_out.is_empty())));
    let needy = &needy[needy.len() - needy_shown..];

    let id = state.workers.iter().map(|worker| worker.id.suffix().len()).max().unwrap_or(3);
    let columns = Columns::fit(picture.width, id);
    // Rows that are written ten times a second carry no links.
    let links = Links::default();
    let prefixes = prefixes(state);
    let look = Look { glyphs: picture.glyphs, links: &links, prefixes: &prefixes };
    let row =
        |worker: &&WorkerRow| rows::live(&columns, look, worker, asked_tool(state, &worker.id), picture.now);
    let mut block = above;
    if others.is_empty() && needy.is_empty() && block.len() < most.saturating_sub(footer.len()) {
        block.extend(coordinator(picture, cells));
    }
    block.extend(shown.iter().map(row));
    if !left_out.is_empty() && room > 0 {
        block.push(cut(&more(left_out), cells));
    }
    block.extend(needy.iter().map(row));
    block.extend(prompt);
    block.extend(footer);
    block.truncate(most);
    block
}

/// How much is enough of the ids of a session.
pub(crate) fn prefixes(state: &StateView) -> Prefixes {
    let workers = state.workers.iter().map(|worker| worker.id.suffix().to_owned());
    Prefixes::over(workers.chain([state.session_id.short()]))
}

/// The tool a worker asks for.
pub(crate) fn asked_tool<'a>(state: &'a StateView, id: &WorkerId) -> Option<&'a str> {
    state.asks.iter().find(|ask| ask.request.worker_id == *id).map(|ask| ask.request.tool.as_str())
}

fn fit<'a, 'b>(workers: &'b [&'a WorkerRow], room: usize) -> (&'b [&'a WorkerRow], &'b [&'a WorkerRow]) {
    if workers.len() <= room { (workers, &[]) } else { workers.split_at(room.saturating_sub(1)) }
}

fn more(left_out: &[&WorkerRow]) -> String {
    let count = |class: Class| left_out.iter().filter(|worker| Class::of(worker) == class).count();
    let run = count(Class::Run);
    let queued = count(Class::Queued);
    let other = left_out.len() - run - queued;
    let parts: Vec<String> = [(run, "run"), (other, "wait"), (queued, "queued")]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    format!("+ {} more: {}", left_out.len(), parts.join(", "))
}

/// What the coordinator does while no worker lives.
fn coordinator(picture: &Picture<'_>, cells: usize) -> Option<String> {
    let state = picture.state;
    let words = match (state.state, state.waiting_for.as_deref()) {
        (SessionState::Active, _) if state.activity.is_empty() => "thinking".to_owned(),
        (SessionState::Active, _) => visible(&state.activity),
        (SessionState::Waiting, Some("key")) => "waits for a key of the provider".to_owned(),
        (SessionState::Waiting, Some(what)) => format!("waits for {}", visible(what)),
        (SessionState::Waiting | SessionState::Idle | SessionState::Ended, _) => return None,
    };
    let glyph = picture.glyphs.live(Class::Run, picture.now.as_millis());
    let words = cut(&format!("coordinator {words}"), cells.saturating_sub(2));
    Some(format!("{} {words}", paint(Class::Run.style(), glyph)))
}

/// The command as it stands in the prompt, wrapped; never chopped.
pub(crate) fn request_lines(ask: &Ask, cells: usize) -> Vec<String> {
    let text = match ask.request.input.get("command").and_then(|command| command.as_str()) {
        Some(command) => command.to_owned(),
        None => ask.request.summary.clone(),
    };
    let cells = cells.saturating_sub(6).max(8);
    visible_lines(&text).flat_map(|line| wrap(&line, cells)).map(|line| format!("      {line}")).collect()
}

/// Rows of the prompt that the command may take.
fn room_for_request(height: usize) -> usize {
    // Row of who asks, three lines about the request, the footer; half of the screen is enough for the rest.
    (height.saturating_sub(2) / 2).saturating_sub(2).max(1)
}

/// Whether the whole command stands in the prompt.
pub(crate) fn fits(ask: &Ask, width: usize, height: usize) -> bool {
    request_lines(ask, width.saturating_sub(1)).len() <= room_for_request(height)
}

fn prompt(picture: &Picture<'_>, ask: &Ask, cells: usize) -> Vec<String> {
    let request = &ask.request;
    let mut command = request_lines(ask, cells);
    let room = room_for_request(picture.height);
    let whole = command.len();
    let fits = whole <= room;
    if !fits {
        command.truncate(room.saturating_sub(1));
        command.push(format!("      .. {} more lines: v shows them", whole - command.len()));
    }
    let mut lines: Vec<String> = command.into_iter().map(|line| paint(BOLD, &cut(&line, cells))).collect();
    if let Some(description) = request.description.as_deref().filter(|_| picture.height >= 20) {
        lines.push(paint(DIM, &cut(&format!("  it says: {}", visible(description)), cells)));
    }
    let left = format::age(ask.deadline.millis_since(picture.now));
    let left = format!("; {left} left");
    let why = cut(&format!("  asks because {}", visible(&request.why)), cells.saturating_sub(width(&left)));
    lines.push(cut(&format!("{why}{left}"), cells));
    if let Some(input) = picture.keys.input() {
        lines.push(cut(&format!("  deny with words: {}_", visible(input)), cells));
        lines.push(cut("  Enter sends  Esc drops them", cells));
        return lines;
    }
    let mut keys = Vec::new();
    if fits || picture.keys.seen() {
        keys.push("a allow");
    }
    if let Some(rule) = &request.proposed_rule {
        if picture.height >= 10 {
            let file =
                ask.always_file.as_deref().map_or_else(String::new, |file| format!(" in {}", visible(file)));
            lines.push(cut(&format!("  always = {}{file}", visible(rule)), cells));
        }
        if fits || picture.keys.seen() {
            keys.push("s session");
            keys.push(if picture.keys.always_once() { "A once more: always" } else { "A always" });
        }
    }
    keys.extend(["x deny", "X deny+stop", "m deny with words", "v view"]);
    let mut line = String::new();
    for key in keys {
        if !line.is_empty() && width(&line) + 2 + width(key) > cells {
            lines.push(paint(YELLOW, &std::mem::take(&mut line)));
        }
        line.push_str("  ");
        line.push_str(key);
    }
    lines.push(paint(YELLOW, &cut(&line, cells)));
    lines
}

fn footer(picture: &Picture<'_>, cells: usize) -> Vec<String> {
    let state = picture.state;
    let counts = counts(state);
    let figures = format!(
        "{} {} {}",
        format::tokens(state.usage().total()),
        format::cost(&state.cost()),
        format::age(picture.now.millis_since(state.since))
    );
    let what = if counts.is_empty() { figures } else { format!("{counts}  {figures}") };
    let keys = match (picture.has_keyboard, picture.stopping) {
        (_, true) => "stopping; ^C leaves",
        (true, false) => "q leave  ^C stop",
        (false, false) => "^C stop",
    };
    let keys = if picture.reconnecting { "looking for the server" } else { keys };
    // The keys are never cut: who is not told how to leave presses ^C.
    let what = cut(&format!("  {what}"), cells.saturating_sub(width(keys) + 3));
    vec![format!("{}   {}", paint(DIM, &what), paint(DIM, &cut(keys, cells)))]
}

/// `2 run  1 waits for you  1 other  1 done`.
pub(crate) fn counts(state: &StateView) -> String {
    let mut run = 0;
    let mut you = 0;
    let mut other = 0;
    let mut queued = 0;
    let mut done = 0;
    let mut failed = 0;
    for worker in &state.workers {
        match Class::of(worker) {
            Class::Run => run += 1,
            Class::NeedsYou => you += 1,
            Class::WaitsOtherwise => other += 1,
            Class::Queued => queued += 1,
            Class::Done | Class::Doubt => done += 1,
            Class::Failed | Class::Stopped => failed += 1,
        }
    }
    let waits = if you == 1 { "waits for you" } else { "wait for you" };
    [(run, "run"), (you, waits), (other, "other"), (queued, "queued"), (done, "done"), (failed, "not done")]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word): (i32, &str)| format!("{count} {word}"))
        .collect::<Vec<_>>()
        .join("  ")
}

#[cfg(test)]
mod tests;
