//! query-engine
