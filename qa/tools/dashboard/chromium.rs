// SPDX-License-Identifier: GPL-2.0-or-later

//! Chromium without a window, driven through a pipe by its DevTools protocol.

use crate::support::{leave_out, project, soon, wait_for};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tempfile::TempDir;

/// Names of Chromium in distributions. The first needs the least resources.
const PROGRAMS: [&str; 4] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "headless_shell",
];

/// A browser with one page. Dropping it ends the browser.
pub struct Chromium {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    last: u64,
    session: Option<String>,
    complaints: Vec<String>,
    _profile: TempDir,
}

fn program() -> String {
    let directories = std::env::var_os("PATH").expect("PATH is set");
    let found = PROGRAMS.into_iter().find_map(|name| {
        let mut files = std::env::split_paths(&directories).map(|dir| dir.join(name));
        files.find(|file| file.is_file())
    });
    let found = found.unwrap_or_else(|| leave_out("Chromium is missing: scripts/setup check-full"));
    found.to_str().expect("UTF-8").to_owned()
}

/// Forwards messages of Chromium until the receiver is dropped.
fn listen(mut output: impl BufRead, messages: &Sender<Value>) {
    let mut message = Vec::new();
    while output
        .read_until(0, &mut message)
        .is_ok_and(|read| read > 0)
    {
        message.pop();
        let value = serde_json::from_slice(&message).expect("JSON of Chromium");
        if messages.send(value).is_err() {
            return;
        }
        message.clear();
    }
}

impl Chromium {
    /// Starts Chromium with an empty page of this size.
    pub fn start(width: u32, height: u32) -> Self {
        let profile = tempfile::Builder::new().prefix("nixl").tempdir();
        let profile = profile.expect("a directory");
        let mut command = Command::new("sh");
        // Chromium reads from descriptor 3 and writes to descriptor 4.
        command.args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null"]);
        command.arg(program()).args([
            "--headless",
            "--remote-debugging-pipe",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
        ]);
        if nix::unistd::Uid::effective().is_root() {
            // As root, Chromium does not start with a sandbox.
            command.arg("--no-sandbox");
        }
        let child = command
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .env("HOME", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = child.expect("sh");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, messages) = channel();
        std::thread::spawn(move || listen(output, &sender));
        let mut chromium = Self {
            input: child.stdin.take().expect("piped"),
            child,
            messages,
            last: 0,
            session: None,
            complaints: Vec::new(),
            _profile: profile,
        };
        let made = chromium.call("Target.createTarget", json!({ "url": "about:blank" }));
        let target = json!({ "targetId": made["targetId"], "flatten": true });
        let attached = chromium.call("Target.attachToTarget", target);
        chromium.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Runtime.enable", "Log.enable", "Page.enable"] {
            chromium.call(domain, json!({}));
        }
        chromium.resize(width, height);
        chromium
    }

    /// Calls a method. Returns its result.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let id = self.last;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        write!(self.input, "{message}\0").expect("Chromium reads");
        self.input.flush().expect("Chromium reads");
        loop {
            let answer = self.messages.recv_timeout(Duration::from_secs(60));
            let mut answer = answer.unwrap_or_else(|err| panic!("{method}: {err}"));
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].take();
            }
            self.note(&answer);
        }
    }

    /// Records events that a page must not cause: errors, violations of its policy, dialogs. A missing server is
    /// allowed.
    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        let complaint = match event["method"].as_str() {
            Some("Runtime.exceptionThrown" | "Page.javascriptDialogOpening") => true,
            Some("Runtime.consoleAPICalled") => params["type"] != "log",
            Some("Log.entryAdded") => params["entry"]["source"] != "network",
            _ => false,
        };
        if complaint {
            self.complaints.push(event.to_string());
        }
    }

    /// Value of an expression, as JSON.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({
            "expression": expression,
            "returnByValue": true,
            "awaitPromise": true,
        });
        let mut result = self.call("Runtime.evaluate", params);
        assert!(
            result["exceptionDetails"].is_null(),
            "{expression}: {result}"
        );
        result["result"]["value"].take()
    }

    /// Value of an expression, as text.
    pub fn text(&mut self, expression: &str) -> String {
        let value = self.evaluate(expression);
        let text = value.as_str();
        text.unwrap_or_else(|| panic!("{expression}: {value}"))
            .to_owned()
    }

    /// Waits until an expression is true.
    pub fn until(&mut self, what: &str, expression: &str) {
        let mut seen = None;
        let is_so = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for(what, || {
                let value = self.evaluate(expression);
                let is_so = value == true;
                seen = Some(value);
                is_so.then_some(())
            });
        }));
        if is_so.is_err() {
            let page = self.evaluate("document.body.innerText");
            panic!("{what}: {seen:?}: {expression}\n{page}");
        }
    }

    /// Opens the dashboard from a file of the project, with a fragment after # in its address.
    pub fn open(&mut self, fragment: &str) {
        let page = project("share/dashboard/index.html");
        let url = format!("file://{}#{fragment}", page.display());
        // A change of the fragment alone does not load the page again.
        self.call("Page.navigate", json!({ "url": "about:blank" }));
        self.call("Page.navigate", json!({ "url": url }));
        self.until("the page is there", "document.readyState === 'complete'");
    }

    pub fn resize(&mut self, width: u32, height: u32) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Sets the colour scheme: light or dark.
    pub fn set_scheme(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call(
            "Emulation.setEmulatedMedia",
            json!({ "features": features }),
        );
    }

    /// Writes a screenshot as WebP.
    pub fn picture(&mut self, file: &Path) {
        let shot = self.call(
            "Page.captureScreenshot",
            json!({ "format": "webp", "quality": 80 }),
        );
        let base64 = shot["data"].as_str().expect("a picture");
        let mut decode = Command::new("base64");
        let mut child = decode
            .arg("-d")
            .stdin(Stdio::piped())
            .stdout(std::fs::File::create(file).expect("a file"))
            .spawn()
            .expect("base64(1)");
        let mut input = child.stdin.take().expect("piped");
        input.write_all(base64.as_bytes()).expect("it reads");
        drop(input);
        assert!(child.wait().expect("our child").success());
    }

    /// Recorded events that the page must not cause.
    pub fn complaints(&mut self) -> &[String] {
        // All earlier events have arrived before this answer.
        self.evaluate("1");
        &self.complaints
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // Chromium writes to its profile until it has ended, and a killed one leaves processes that still write.
        let close = json!({ "id": 0, "method": "Browser.close" });
        let sent = write!(self.input, "{close}\0").and_then(|()| self.input.flush());
        let has_ended = || self.child.try_wait().ok().flatten();
        if sent.is_err() || soon(has_ended).is_none() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
