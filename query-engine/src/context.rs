//! What of a conversation is sent, how full the window is, and how history is made smaller.

pub mod accounting;
pub mod cache;
pub mod prefix;
pub mod tool_result_budget;
pub mod view;
