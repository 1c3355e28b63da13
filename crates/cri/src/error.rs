//! Errors of CRI calls.

use std::fmt;

use tonic::{Code, Status};

/// Kind of failure, as far as it matters to callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The object does not exist; often as good as success.
    NotFound,
    /// The runtime is too old for the call.
    Unimplemented,
    /// No response in time. A mutating call may have succeeded nevertheless: inspect before
    /// retrying.
    TimedOut,
    /// The runtime cannot be reached.
    Unavailable,
    /// The name is in use, often by an earlier call of ours that timed out.
    AlreadyExists,
    /// Too many requests at once.
    Exhausted,
    /// The reply lacks a required field.
    BadReply,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub call: &'static str,
    pub object: String,
    pub kind: Kind,
    /// The runtime's error message.
    pub message: String,
    /// The gRPC code, as Go prints it.
    pub(crate) code: &'static str,
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, object, kind, message, .. } = self;
        write!(f, "{call}")?;
        if !object.is_empty() {
            write!(f, " {object}")?;
        }
        match kind {
            Kind::TimedOut => write!(f, ": the runtime did not respond in time: {message}"),
            Kind::Unavailable => write!(f, ": the runtime cannot be reached: {message}"),
            Kind::BadReply => write!(f, ": the runtime sent an invalid reply: {message}"),
            Kind::NotFound
            | Kind::Unimplemented
            | Kind::AlreadyExists
            | Kind::Exhausted
            | Kind::Other => write!(f, ": {message}"),
        }
    }
}

impl Error {
    pub(crate) fn from_status(call: &'static str, object: &str, status: &Status) -> Self {
        if is_expired(status) {
            let message = "context deadline exceeded".into();
            let (kind, code) = (Kind::TimedOut, code_name(Code::DeadlineExceeded));
            return Self { call, object: object.into(), kind, message, code };
        }
        let message = status.message().to_owned();
        let kind = match status.code() {
            Code::NotFound => Kind::NotFound,
            Code::Unimplemented => Kind::Unimplemented,
            Code::DeadlineExceeded => Kind::TimedOut,
            // The connection broke during the call: it is unknown how far it got.
            _ if is_broken(status) => Kind::Unavailable,
            Code::Cancelled => Kind::TimedOut,
            Code::Unavailable => Kind::Unavailable,
            Code::AlreadyExists => Kind::AlreadyExists,
            Code::ResourceExhausted => Kind::Exhausted,
            _ if message.contains("is reserved for") => Kind::AlreadyExists,
            _ => Kind::Other,
        };
        Self { call, object: object.into(), kind, message, code: code_name(status.code()) }
    }

    pub(crate) fn internal(call: &'static str, message: String) -> Self {
        Self { call, object: String::new(), kind: Kind::Other, message, code: "Internal" }
    }

    /// The failure in upstream's format, for messages that people and programs match on.
    pub fn rpc_text(&self) -> String {
        format!("rpc error: code = {} desc = {}", self.code, self.message)
    }

    /// The reason of a failed pull. A message without a gRPC code is quoted as it is.
    pub fn pull_text(&self) -> String {
        match self.code {
            "Unknown" => self.message.clone(),
            _ => self.rpc_text(),
        }
    }

    pub(crate) fn bad_reply(call: &'static str, object: &str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { call, object: object.into(), kind: Kind::BadReply, message, code: "Unknown" }
    }

    /// The runtime did not respond, as opposed to a refusal.
    pub fn is_silence(&self) -> bool {
        match self.kind {
            Kind::TimedOut | Kind::Unavailable => true,
            Kind::NotFound
            | Kind::Unimplemented
            | Kind::AlreadyExists
            | Kind::Exhausted
            | Kind::BadReply
            | Kind::Other => false,
        }
    }

    /// The call may have taken effect although it failed.
    pub fn is_ambiguous(&self) -> bool {
        match self.kind {
            Kind::TimedOut | Kind::Unavailable | Kind::AlreadyExists => true,
            Kind::NotFound
            | Kind::Unimplemented
            | Kind::Exhausted
            | Kind::BadReply
            | Kind::Other => false,
        }
    }
}

/// Whether the failure came from the transport and not from the runtime.
fn is_broken(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

/// tonic reports its own expired deadline as a cancellation; report it as DeadlineExceeded.
fn is_expired(status: &Status) -> bool {
    status.code() == Code::Cancelled && status.message() == "Timeout expired"
}

fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}
