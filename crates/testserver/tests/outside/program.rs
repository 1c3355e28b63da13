//! Test server as a child process, and requests to it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_testserver"))
            .args(arguments)
            .env("POD_NAME", "web-0")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The port of the next server in its output.
    pub(crate) fn port(&mut self, kind: &str) -> u16 {
        let line = self.line();
        let port = line.strip_prefix(&format!("{kind} on port "));
        port.unwrap_or_else(|| panic!("{line:?}")).parse().unwrap()
    }

    pub(crate) fn send(&self, signal: Signal) {
        let id = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(id, signal).unwrap();
    }

    /// Its exit status, and its unread output.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + LIMIT;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the program does not exit");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap(), rest)
    }
}

/// A failed test leaves no process behind.
impl Drop for Program {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

pub(crate) fn http(method: &str, port: u16, path: &str) -> HttpResponse {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    // HTTP/1.0 has no chunks and ends with the connection.
    let request = format!("{method} {path} HTTP/1.0\r\nHost: pod\r\nX-Probe: yes\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    HttpResponse { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}
