//! What following shows: rows where there is a terminal for them, lines elsewhere, words on standard output.

use serde_json::Value;
use swarm_protocol::Timestamp;
use tokio::time::Instant;

use super::{Follower, REST, STILL_WORKING};
use crate::cli::{
    alert::Occasion,
    args::Progress,
    layout::{self, Picture},
    plain,
    rows::{self, Columns, Look},
    shell::now,
    state::News,
    terminal,
    text::{visible, visible_lines, wrap},
};

impl Follower<'_> {
    pub(super) fn news(&mut self, news: &News) {
        match news {
            News::Words(lines) => return self.words(lines),
            News::Finished(task_id) if *task_id == self.task_id => return self.ask_for_the_end(),
            News::Asked(request) => {
                self.ask_the_desk();
                self.alert(Occasion::Asks(&request.worker_id));
            }
            News::NeedsKey => self.resume(),
            _ => {}
        }
        if self.has_rows {
            let columns = Columns::fit(terminal::size().0, 3);
            match news {
                News::Ended(id) => {
                    if let Some(worker) = self.state.worker(id) {
                        let prefixes = layout::prefixes(&self.state);
                        let look =
                            Look { glyphs: self.shell.glyphs, links: &self.links, prefixes: &prefixes };
                        let line = rows::just_ended(&columns, look, worker, now());
                        self.say([line.trim_end().to_owned()]);
                    }
                }
                // The rows show it.
                News::Started(_) | News::Asked(_) | News::Words(_) | News::Finished(_) => {}
                News::Decided(_, decision, _) if self.own_answers.contains(&decision.id) => {}
                News::Continued(..)
                | News::Decided(..)
                | News::Withdrawn(_)
                | News::NeedsKey
                | News::Restarted(..)
                | News::Trouble(..)
                | News::Merged(..) => self.say(plain::lines(news, &self.state)),
            }
        } else {
            for line in plain::lines(news, &self.state) {
                self.line(&line);
            }
        }
    }

    /// The coordinator's words: whole lines, harmless, on standard output.
    fn words(&mut self, lines: &[String]) {
        if self.shell.is_json() || self.shell.options.quiet {
            return;
        }
        if self.words_in_block {
            let cells = terminal::size().0.saturating_sub(1);
            self.painter.permanent(lines.iter().flat_map(|line| wrap(&visible(line), cells)));
        } else {
            let text: String =
                lines.iter().map(|line| format!("{}\n", visible(&line.replace('\t', "    ")))).collect();
            self.painter.words(text.as_bytes());
        }
    }

    /// Calls whoever left the terminal alone.
    pub(super) fn alert(&self, occasion: Occasion<'_>) {
        if let Some(alerts) = self.alerts {
            self.painter.alert(&alerts.bytes(occasion));
        }
    }

    /// A line on standard error that stays.
    pub(super) fn say(&mut self, lines: impl IntoIterator<Item = String>) {
        if self.shell.options.quiet || self.shell.options.progress == Progress::None {
            return;
        }
        self.last_line = Instant::now();
        let lines: Vec<String> = lines.into_iter().collect();
        if self.has_rows {
            let cells = terminal::size().0.saturating_sub(1);
            // A styled row is as wide as it may be already; words are wrapped.
            self.painter.permanent(
                lines
                    .into_iter()
                    .flat_map(|line| if line.contains('\u{1b}') { vec![line] } else { wrap(&line, cells) }),
            );
        } else {
            self.painter.permanent(lines);
        }
    }

    /// A fact with its time, for readers without rows.
    pub(super) fn line(&mut self, words: &str) {
        let stamp = plain::stamp(&self.state, now());
        self.say([format!("{stamp} {words}")]);
    }

    /// Says that work goes on, when nothing else was said for long.
    pub(super) fn beat(&mut self) {
        if !self.has_rows && self.last_line.elapsed() >= STILL_WORKING {
            let words = plain::still_working(&self.state);
            self.line(&words);
        }
    }

    pub(super) fn draw(&mut self) {
        if !self.has_rows {
            return;
        }
        let (width, height) = terminal::size();
        let now = now();
        if let Some(keyboard) = &self.keyboard {
            let ask = self.state.asks.first();
            let shown = ask.map(|ask| {
                (&ask.request.id, ask.request.proposed_rule.is_some(), layout::fits(ask, width, height))
            });
            if self.keys.show(shown, now) {
                // What was typed before is for nobody.
                keyboard.flush();
            }
        }
        // At rest only ages move, once a second.
        let shown_at = if self.last_event.elapsed() < REST {
            now
        } else {
            Timestamp::from_millis(now.as_millis() / 1000 * 1000)
        };
        self.painter.rows(layout::block(&Picture {
            state: &self.state,
            keys: &self.keys,
            stopping: self.stopping,
            reconnecting: self.reconnecting,
            has_keyboard: self.keyboard.is_some(),
            width,
            height,
            now: shown_at,
            glyphs: self.shell.glyphs,
        }));
    }

    /// The whole request, above the block.
    pub(super) fn view(&mut self) {
        let Some(ask) = self.state.asks.first() else { return };
        let mut lines =
            vec![format!("{} asks {}:", ask.request.worker_id.suffix(), visible(&ask.request.tool))];
        match ask.request.input.get("command").and_then(Value::as_str) {
            Some(command) => lines.extend(visible_lines(command).map(|line| format!("  {line}"))),
            None => {
                let input = serde_json::to_string_pretty(&ask.request.input).unwrap_or_default();
                lines.extend(visible_lines(&input).map(|line| format!("  {line}")));
            }
        }
        lines.push(format!("asks because {}", visible(&ask.request.why)));
        self.say(lines);
    }
}
