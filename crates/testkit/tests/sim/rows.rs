//! The rows of the behaviour reference's table "what a test should show", and where each is shown.
//!
//! A row that is a pure decision is a table in `podwright-core`; a row about behaviour over time
//! is a test here, named after it. Where ours differs from upstream on purpose (4, 37, 39, 49), the
//! test shows our way and `docs/differences.md` gives the reason.
//!
//! | rows | where |
//! |---|---|
//! | 1-4, 6-9, 14-18 | [`sources`]; 1-3 also in core `pod/manifest.rs`, `pod/mirror.rs` |
//! | 5 | `podwright-node`, `sources/url.rs`, and the end-to-end suite |
//! | 10-13, 24, 25, 45, 48, 49 | [`ends`] |
//! | 19-22, 31, 32, 42, 43 | [`runtime`] |
//! | 34-37, 39, 40 | [`reports`]; 37 also in the end-to-end suite |
//! | 41 | [`runtime`]: there is no channel that could be full; a lost event is what is left of it |
//! | 23, 26-30, 33, 38, 46, 47 | core `status/tests/rows.rs` |
//! | 44 | `podwright-node`, `volumes/tests.rs`, on real mounts |
//! | 50 | with eviction; [`ends`] shows the kill that it will use |

mod ends;
mod reports;
mod runtime;
mod sources;
