//! Errors as problem+json: the one place that knows both our errors and HTTP's status codes.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use model_client::EndpointError;
use swarm_protocol::{api::Problem, error_chain};
use worktree_manager::{BaseError, OpenError};

use crate::{
    channel::AnswerError,
    journal::{AppendError, StorageFault},
    review::ReviewError,
    session::OrderError,
    submit::SubmitError,
};

/// An answer that is a problem.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) problem: Box<Problem>,
    /// When to come again, in seconds.
    pub(crate) retry_after_s: Option<u64>,
}

impl Fault {
    pub(crate) fn new(status: StatusCode, code: &str, title: impl Into<String>) -> Self {
        let problem = Box::new(Problem {
            problem_type: "about:blank".to_owned(),
            status: status.as_u16(),
            title: title.into(),
            causes: Vec::new(),
            hint: None,
            code: code.to_owned(),
        });
        Self { problem, retry_after_s: None }
    }

    pub(crate) fn cause(mut self, cause: impl Into<String>) -> Self {
        self.problem.causes.push(cause.into());
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.problem.hint = Some(hint.into());
        self
    }

    pub(crate) fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    pub(crate) fn not_available(what: &str) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "not_available", format!("{what} is not available yet"))
    }

    pub(crate) fn unknown_id(what: &str, id: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "unknown_id", format!("no {what} `{id}`"))
            .hint("GET /api/v1/sessions and /api/v1/workers list what there is")
    }

    pub(crate) fn bad_request(title: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", title)
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self.problem)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

impl From<StorageFault> for Fault {
    fn from(fault: StorageFault) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "storage", "the journal could not be used")
            .cause(error_chain(&fault))
            .hint("look at the free space and the permissions of $SWARM_HOME")
    }
}

impl From<AppendError> for Fault {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Storage(fault) => fault.into(),
            stale @ AppendError::Stale { .. } => {
                Self::new(StatusCode::CONFLICT, "session_moved", stale.to_string())
            }
        }
    }
}

impl From<OrderError> for Fault {
    fn from(error: OrderError) -> Self {
        let text = error.to_string();
        match error {
            OrderError::Gone(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, "session_gone", text),
            OrderError::UnknownWorker { .. } | OrderError::UnknownRequest(_) => {
                Self::new(StatusCode::NOT_FOUND, "unknown_id", text)
            }
            OrderError::StoppedByPerson(_) => Self::new(StatusCode::CONFLICT, "stopped_by_person", text),
            OrderError::Ended(_) => {
                Self::new(StatusCode::CONFLICT, "session_ended", text).hint("start a new one: swarm run ...")
            }
            OrderError::Discarded(id) => Self::new(StatusCode::CONFLICT, "discarded", text)
                .hint(format!("swarm restore {}", id.suffix())),
            OrderError::OtherArguments(_) => Self::new(StatusCode::CONFLICT, "other_arguments", text)
                .hint("look at the request again: GET /api/v1/permissions"),
            OrderError::NoRule => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "no_rule", text),
            OrderError::Storage(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, "storage", text)
                .hint("look at the free space and the permissions of $SWARM_HOME"),
            OrderError::Refused(_) => Self::new(StatusCode::CONFLICT, "refused", text),
        }
    }
}

impl From<AnswerError> for Fault {
    fn from(error: AnswerError) -> Self {
        let (status, code) = match error {
            AnswerError::NoChannel => (StatusCode::NOT_FOUND, "no_channel"),
            AnswerError::NoSignature | AnswerError::NoNonce => (StatusCode::UNAUTHORIZED, "not_signed"),
            AnswerError::WrongSignature => (StatusCode::UNAUTHORIZED, "wrong_signature"),
            AnswerError::NotNow => (StatusCode::UNAUTHORIZED, "not_now"),
            AnswerError::Replayed => (StatusCode::CONFLICT, "replayed"),
            AnswerError::TooMany => (StatusCode::TOO_MANY_REQUESTS, "too_many"),
        };
        Self::new(status, code, error.to_string())
    }
}

impl From<ReviewError> for Fault {
    fn from(error: ReviewError) -> Self {
        let text = error.to_string();
        match error {
            ReviewError::Order(order) => order.into(),
            ReviewError::AtWork(_) => Self::new(StatusCode::CONFLICT, "at_work", text),
            ReviewError::NoBranch(_) => Self::new(StatusCode::CONFLICT, "no_branch", text),
            ReviewError::Discarded(_) => Self::new(StatusCode::CONFLICT, "discarded", text),
            ReviewError::NotDiscarded(_) => Self::new(StatusCode::CONFLICT, "not_discarded", text),
            ReviewError::NoTarget => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "no_target", text),
            ReviewError::BadName(_) => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "bad_name", text),
            ReviewError::Refused(_) => Self::new(StatusCode::CONFLICT, "refused", text),
            ReviewError::Kept { id, locked, .. } => {
                let hint = match locked {
                    true => "`git worktree unlock` in that repository frees it".to_owned(),
                    false => format!(
                        "finish it in its worktree, or store what there is and discard: swarm discard {} --force",
                        id.suffix()
                    ),
                };
                Self::new(StatusCode::CONFLICT, "kept", text).hint(hint)
            }
            ReviewError::Git(_) => Self::new(StatusCode::CONFLICT, "git", text),
        }
    }
}

impl From<SubmitError> for Fault {
    fn from(error: SubmitError) -> Self {
        let bad = |code: &str, title: String| Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, title);
        let text = error.to_string();
        match error {
            SubmitError::EmptyPrompt => bad("empty_prompt", text).hint("say what should happen: swarm run \"...\""),
            SubmitError::PromptTooLong => bad("prompt_too_long", text).hint("put it into a file of the repository and name that"),
            SubmitError::NoPlace => bad("no_place", text),
            SubmitError::NotWithSession { .. } => bad("not_with_session", text),
            SubmitError::Stopping => Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_stopping", text),
            SubmitError::Repository(OpenError::NotARepository { path }) => {
                bad("not_a_repository", format!("{} is not in a git repository", path.display()))
                    .cause("no .git here or above")
                    .hint("cd into one, pass --repo PATH, or: git init")
            }
            SubmitError::Repository(other) => bad("unsupported_repository", error_chain(&other)),
            SubmitError::Carry(_) => bad("cannot_carry", text),
            SubmitError::NotUtf8 { .. } => {
                bad("not_utf8", text).hint("rename that directory, or work from a clone elsewhere")
            }
            SubmitError::Read(error) => bad("unsupported_repository", error_chain(&error)),
            SubmitError::Facts(_) => bad("unsupported_repository", text),
            SubmitError::Base { repo, spec, source, given } => base(&repo, &spec, &source, given),
            SubmitError::Config(config) => {
                let mut fault = bad("bad_config", config.to_string());
                if let Some(cause) = config.cause() {
                    fault = fault.cause(cause);
                }
                match config.hint {
                    Some(hint) => fault.hint(hint),
                    None => fault,
                }
            }
            SubmitError::ConfigRead(error) => bad("bad_config", error_chain(&error)),
            SubmitError::Settings { errors } => {
                let mut fault = bad("bad_config", text);
                for error in errors.iter().take(5) {
                    fault = fault.cause(match error.place() {
                        Some(place) => place.to_string(),
                        None => error_chain(error),
                    });
                }
                fault
            }
            SubmitError::Trust(error) => bad("bad_trust_store", error_chain(&error)),
            SubmitError::NoModel => bad("no_model", text)
                .cause("looked at --model, SWARM_MODEL, swarm.toml, ~/.swarm/config.toml")
                .hint("set ANTHROPIC_API_KEY and pass --model anthropic/NAME, or see it work: swarm run --model demo"),
            SubmitError::Model(error) => model(&error),
            SubmitError::UnknownPrice { profile, .. } => bad("unknown_price", text)
                .cause("a cap in dollars is kept only where each call has a price")
                .hint(format!("price = {{ input = 3.0, output = 15.0 }} in [endpoints.{profile}], or cap tokens: budget_tokens")),
            SubmitError::BypassDisabled { .. } => bad("bypass_disabled", text),
            SubmitError::UnknownSession(id) => Self::unknown_id("session", &id.to_string()),
            SubmitError::CallbackUrl => bad("bad_callback_url", text),
            SubmitError::Order(order) => order.into(),
            SubmitError::Journal(append) => append.into(),
            SubmitError::Home { home, source } => Self::new(
                StatusCode::INSUFFICIENT_STORAGE,
                "home_not_writable",
                format!("cannot write {}: {source}", home.display()),
            )
            .hint("free space, or SWARM_HOME=/other/place swarm run ..."),
        }
    }
}

fn base(repo: &std::path::Path, spec: &str, source: &BaseError, given: bool) -> Fault {
    let bad = |code: &str, title: String| Fault::new(StatusCode::UNPROCESSABLE_ENTITY, code, title);
    match source {
        BaseError::Unborn { .. } => bad("no_commit", format!("{} has no commit yet", repo.display()))
            .cause("workers start from a commit")
            .hint("git commit --allow-empty -m start"),
        BaseError::Unknown { near, .. } => {
            let fault = bad("bad_base", format!("{} has no commit `{spec}`", repo.display()));
            let fault = if given { fault.cause("from --base") } else { fault };
            match near.first() {
                Some(branch) => fault.hint(format!(
                    "did you mean `{}` (branch, {})?",
                    branch.name,
                    age(branch.age_seconds)
                )),
                None => fault.hint("git branch -a lists the branches"),
            }
        }
        other @ (BaseError::NotACommit { .. } | BaseError::Read(_)) => bad("bad_base", error_chain(other)),
    }
}

fn age(seconds: u64) -> String {
    match seconds {
        0..7_200 => format!("{} min old", seconds / 60),
        7_200..172_800 => format!("{} h old", seconds / 3_600),
        _ => format!("{} days old", seconds / 86_400),
    }
}

fn model(error: &EndpointError) -> Fault {
    let bad = |code: &str| Fault::new(StatusCode::UNPROCESSABLE_ENTITY, code, error.to_string());
    match error {
        EndpointError::NotAModel { .. } | EndpointError::UnknownProvider { .. } => bad("no_model")
            .hint("swarm run --model anthropic/NAME ..., or see it work: swarm run --model demo"),
        EndpointError::NoKey { .. } => {
            bad("no_key").hint("set the key, or see it work: swarm run --model demo")
        }
        EndpointError::BadVariable { .. } => bad("bad_config"),
    }
}
