//! Sleep: waiting without a command that does nothing.

use std::time::Duration;

use async_trait::async_trait;
use query_engine::ports::{Tool, ToolContext, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::parse;

/// As long as a command may take.
const MAX_SECONDS: f64 = 600.0;

/// The tool.
pub struct Sleep;

#[derive(Deserialize)]
struct Input {
    seconds: Value,
}

impl Input {
    fn time(&self) -> Option<Duration> {
        let seconds = match &self.seconds {
            Value::String(text) => text.trim().parse().ok()?,
            number => number.as_f64()?,
        };
        (seconds > 0.0 && seconds <= MAX_SECONDS).then(|| Duration::from_secs_f64(seconds))
    }
}

#[async_trait]
impl Tool for Sleep {
    fn name(&self) -> &str {
        "Sleep"
    }

    fn description(&self) -> String {
        "Waits for some seconds, at most 600. For a background job that needs time: you are told when it ends, so \
         sleep only when there is nothing else to do. Messages to you are read after it."
            .to_owned()
    }

    fn input_schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {"seconds": {"type": "number", "description": "More than 0, at most 600"}},
            "required": ["seconds"]
        })
    }

    fn is_read_only(&self, _: &Value) -> bool {
        true
    }

    fn is_concurrency_safe(&self, _: &Value) -> bool {
        true
    }

    fn is_own_state(&self) -> bool {
        true
    }

    fn search_hint(&self) -> &str {
        "wait, pause, delay"
    }

    async fn call(&self, input: Value, context: ToolContext) -> ToolOutput {
        let input: Input = match parse("Sleep", input) {
            Ok(input) => input,
            Err(problem) => return ToolOutput::error(problem),
        };
        let Some(time) = input.time() else {
            return ToolOutput::error("seconds must be a number above 0 and at most 600.");
        };
        let begin = Instant::now();
        let was_cancelled = tokio::select! {
            () = context.cancel.cancelled() => true,
            () = tokio::time::sleep(time) => false,
        };
        let slept = begin.elapsed().as_secs_f64();
        if was_cancelled {
            return ToolOutput::error(format!("The sleep was cancelled after {slept:.1} s."));
        }
        // The time tells one wait from the next.
        let now = crate::record::now();
        ToolOutput::text(format!("Slept {slept:.1} s; it is {now}."))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use query_engine::ports::NoObserver;
    use swarm_protocol::ResultBlock;
    use tokio_util::sync::CancellationToken;

    use super::*;

    async fn sleep(seconds: Value, cancel: &CancellationToken) -> (String, bool, Duration) {
        let context = ToolContext {
            tool_use_id: "toolu_1".parse().unwrap(),
            cancel: cancel.clone(),
            observer: Arc::new(NoObserver),
        };
        let begin = Instant::now();
        let output = Sleep.call(json!({"seconds": seconds}), context).await;
        let ResultBlock::Text { text } = &output.content[0] else { panic!("a picture") };
        (text.clone(), output.is_error, begin.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn it_sleeps_as_long_as_asked_and_no_longer_than_ten_minutes() {
        let never = CancellationToken::new();
        for (seconds, expected) in
            [(json!(2), 2.0), (json!(0.5), 0.5), (json!("30"), 30.0), (json!(600), 600.0)]
        {
            let (said, is_error, took) = sleep(seconds, &never).await;
            assert!(!is_error && said.starts_with(&format!("Slept {expected:.1} s; it is ")), "{said}");
            assert!((took.as_secs_f64() - expected).abs() < 0.01, "{took:?}");
        }
        for wrong in [json!(0), json!(-1), json!(601), json!("soon"), json!(null)] {
            let (said, is_error, took) = sleep(wrong, &never).await;
            assert!(is_error && said.contains("at most 600") && took.is_zero(), "{said}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancel_ends_it_at_once() {
        let cancel = CancellationToken::new();
        let slept = sleep(json!(600), &cancel);
        let stop = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            cancel.cancel();
        };
        let ((said, is_error, took), ()) = tokio::join!(slept, stop);
        assert_eq!((said.as_str(), is_error), ("The sleep was cancelled after 3.0 s.", true));
        assert!(took < Duration::from_secs(4), "{took:?}");
    }
}
