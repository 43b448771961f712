//! A web server that gives the answers of a test, such as those of pmproxy, or answers that pmproxy never gives.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Answers by what a path has in it, and how often each was asked for.
#[derive(Default)]
struct Said {
    answers: Vec<(String, Vec<String>)>,
    asked: HashMap<String, usize>,
}

/// The server; it goes on until the test's process ends.
pub struct Answers {
    port: u16,
    said: Arc<Mutex<Said>>,
}

impl Answers {
    /// Answers nothing yet.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let said = Arc::<Mutex<Said>>::default();
        let shared = Arc::clone(&said);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let said = Arc::clone(&shared);
                // A browser opens connections that it has no request for yet; one that is gone gets no answer.
                std::thread::spawn(move || answer(stream, &said));
            }
        });
        Self { port, said }
    }

    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What to answer to paths that have this in them, one after the other; the last one again and again.
    pub fn to(&self, part: &str, answers: &[&str]) {
        let mut said = self.said.lock().expect("nobody panics");
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
    let mut said = said.lock().expect("nobody panics");
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
