//! Config: the settings of this run that an agent may know, and the few it may change when a person allows it. A
//! change holds for this run; no file is written.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use query_engine::ports::{Tool, ToolContext, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};

use super::parse;

/// A time that may be changed while the run goes on. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Adjustable(Arc<AtomicU64>);

impl From<Duration> for Adjustable {
    fn from(time: Duration) -> Self {
        Self(Arc::new(AtomicU64::new(millis(time))))
    }
}

impl Adjustable {
    /// As it is now.
    pub fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, time: Duration) {
        self.0.store(millis(time), Ordering::Relaxed);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// One setting, under the name that people know it by.
pub struct RunSetting {
    /// `background_grace`
    pub name: &'static str,
    /// What it is.
    pub value: RunValue,
}

/// What a setting is.
pub enum RunValue {
    /// Is as it is.
    Fixed(Value),
    /// A number of seconds that may be changed.
    Seconds {
        /// Where it stands.
        time: Adjustable,
        /// Seconds, at most.
        most: u64,
    },
}

/// The tool.
pub struct Config {
    settings: Vec<RunSetting>,
}

#[derive(Deserialize)]
struct Input {
    #[serde(default)]
    setting: Option<String>,
    #[serde(default)]
    value: Value,
}

impl Config {
    /// Over these settings.
    pub fn new(settings: Vec<RunSetting>) -> Self {
        Self { settings }
    }

    fn answer(&self, input: &Input) -> Result<String, String> {
        let Some(name) = &input.setting else {
            return match &input.value {
                Value::Null => Ok(self.list()),
                _ => Err("Name the setting that gets this value.".to_owned()),
            };
        };
        let Some(setting) = self.settings.iter().find(|setting| setting.name == name) else {
            return Err(format!("There is no setting `{name}`. There are:\n{}", self.list()));
        };
        if input.value.is_null() {
            return Ok(line(setting));
        }
        let RunValue::Seconds { time, most } = &setting.value else {
            return Err(format!("`{name}` is fixed for this run; a person can change it for the next one."));
        };
        let seconds = match &input.value {
            Value::String(text) => text.trim().parse().ok(),
            value => value.as_u64(),
        };
        let Some(seconds) = seconds.filter(|seconds| (1..=*most).contains(seconds)) else {
            return Err(format!("`{name}` must be a whole number of seconds from 1 to {most}."));
        };
        time.set(Duration::from_secs(seconds));
        Ok(format!("Until this run ends: {}", line(setting)))
    }

    fn list(&self) -> String {
        let mut out = String::new();
        for setting in &self.settings {
            let may_change = matches!(setting.value, RunValue::Seconds { .. });
            let _ = writeln!(out, "{}{}", line(setting), if may_change { " (may be set)" } else { "" });
        }
        out
    }
}

fn line(setting: &RunSetting) -> String {
    match &setting.value {
        RunValue::Fixed(value) => format!("{} = {value}", setting.name),
        RunValue::Seconds { time, .. } => format!("{} = {} s", setting.name, time.get().as_secs_f64()),
    }
}

#[async_trait]
impl Tool for Config {
    fn name(&self) -> &str {
        "Config"
    }

    fn description(&self) -> String {
        "Shows the settings of this run: all of them, or the one that `setting` names. With `value` it changes one, \
         which a person has to allow; that holds until the run ends."
            .to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "setting": {"type": "string", "description": "`background_grace`; left out: all"},
                "value": {"type": "integer", "description": "Seconds"}
            }
        })
    }

    fn is_read_only(&self, input: &Value) -> bool {
        input.get("value").is_none_or(Value::is_null)
    }

    fn is_concurrency_safe(&self, input: &Value) -> bool {
        self.is_read_only(input)
    }

    fn should_defer(&self) -> bool {
        true
    }

    fn search_hint(&self) -> &str {
        "settings, configuration, limits, options"
    }

    async fn call(&self, input: Value, _: ToolContext) -> ToolOutput {
        let answer = parse("Config", input).and_then(|input| self.answer(&input));
        answer.map_or_else(ToolOutput::error, ToolOutput::text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_shown_and_those_that_may_be_are_changed() {
        let time = Adjustable::from(Duration::from_secs(600));
        let config = Config::new(vec![
            RunSetting { name: "max_turns", value: RunValue::Fixed(json!(500)) },
            RunSetting {
                name: "background_grace",
                value: RunValue::Seconds { time: time.clone(), most: 3_600 },
            },
        ]);
        let call = |input: Value| parse("Config", input).and_then(|input| config.answer(&input));
        let all = "max_turns = 500\nbackground_grace = 600 s (may be set)\n";
        assert_eq!(call(json!({})).unwrap(), all);
        assert_eq!(call(json!({"setting": "max_turns"})).unwrap(), "max_turns = 500");
        let set = |value: Value| call(json!({"setting": "background_grace", "value": value}));
        assert_eq!(set(json!(30)).unwrap(), "Until this run ends: background_grace = 30 s");
        assert_eq!(set(json!("45")).unwrap(), "Until this run ends: background_grace = 45 s");
        for wrong in [json!(0), json!(3_601), json!(-1), json!("soon"), json!([1])] {
            assert!(set(wrong).unwrap_err().contains("from 1 to 3600"));
        }
        assert_eq!(time.get(), Duration::from_secs(45));
        assert!(call(json!({"setting": "max_turns", "value": 1})).unwrap_err().contains("is fixed"));
        assert!(call(json!({"setting": "sandbox"})).unwrap_err().contains("background_grace = 45 s"));
        assert!(call(json!({"value": 1})).unwrap_err().contains("Name the setting"));
        assert!(config.is_read_only(&json!({"setting": "x"})) && !config.is_read_only(&json!({"value": 1})));
    }
}
