//! Behaviour of the node over time, by topic.
//!
//! Pure decisions are tested with tables in `podwright-core`. Where the behaviour differs from
//! upstream on purpose, the test shows ours and `docs/differences.md` gives the reason.

mod eviction;
mod runtime;
mod sources;
mod status_reports;
mod termination;
