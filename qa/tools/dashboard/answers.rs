// SPDX-License-Identifier: GPL-2.0-or-later

//! A web server with answers that a test sets: like those of pmproxy, or others.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Answers by a part of the path, and number of requests for each part.
#[derive(Default)]
struct Said {
    answers: Vec<(String, Vec<String>)>,
    asked: HashMap<String, usize>,
}

/// Web server. It runs until the process of the test ends.
pub struct Answers {
    port: u16,
    said: Arc<Mutex<Said>>,
}

impl Answers {
    /// Starts without answers.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let said = Arc::<Mutex<Said>>::default();
        let shared = Arc::clone(&said);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let said = Arc::clone(&shared);
                // A browser opens connections without a request. A closed connection gets no answer.
                std::thread::spawn(move || answer(stream, &said));
            }
        });
        Self { port, said }
    }

    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Sets the answers to paths with this part, one after the other. The last one is repeated.
    pub fn to(&self, part: &str, answers: &[&str]) {
        let mut said = self.said.lock().expect("no panic");
        said.answers.retain(|(other, _)| other != part);
        let answers = answers.iter().map(|answer| (*answer).to_owned());
        said.answers.push((part.to_owned(), answers.collect()));
        said.asked.remove(part);
    }
}

fn answer(mut stream: TcpStream, said: &Mutex<Said>) -> std::io::Result<()> {
    let mut input = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    input.read_line(&mut request)?;
    let mut line = String::new();
    while input.read_line(&mut line)? > 2 {
        line.clear();
    }
    let mut said = said.lock().expect("no panic");
    let found = said
        .answers
        .iter()
        .find(|(part, _)| request.contains(part.as_str()))
        .cloned();
    let body = found.map_or_else(String::new, |(part, answers)| {
        let asked = said.asked.entry(part).or_default();
        *asked += 1;
        answers[(*asked - 1).min(answers.len() - 1)].clone()
    });
    drop(said);
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}
