//! Bodies of the HTTP API (spec 8.2), one module a resource. The OpenAPI document is made from these types.

mod permissions;
mod problem;
mod review;
mod server;
mod sessions;
mod tasks;
mod workers;

pub use permissions::{
    AnswerPermission, AnswerPermissions, AnsweredOne, AnsweredPermission, PermissionRacer, PermissionView,
    SignedAnswer,
};
pub use problem::Problem;
pub use review::{
    ConflictFile, DiffView, DiscardView, MergeBody, MergeStrategy, MergeView, RestoreBody, RestoreView,
    SnapshotView,
};
pub use server::{
    ConfigValue, CostRow, CostView, GcBody, GcView, LoginBody, LoginCode, NodeView, Overview, OverviewRow,
    ServerFile, ServerInfo, StopServerBody,
};
pub use sessions::{
    ConversationItem, MessageAccepted, ModelView, PermissionModeBody, ResumeBody, ResumeView,
    SendMessageBody, SessionDetail, SessionView, StopBody, StopView,
};
pub use tasks::{ClientContext, ClientSetting, CreateTask, TaskAccepted, TaskStatus, TaskView};
pub use workers::{
    ExplainView, LedgerEntry, LedgerStep, RunView, StatusChange, TranscriptPage, UnreadMessage, WorkerDetail,
    WorkerView,
};
