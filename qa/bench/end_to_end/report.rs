// SPDX-License-Identifier: GPL-2.0-or-later

//! The results as Markdown of docs/speed.md and as a plot.

use super::Extent;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How the section of `make uprobes` begins (qa/bench/uprobes/measure.py has the same words).
const UPROBES: &str = "\n## What uprobes on NIXL cost\n";

/// Table of results.
#[derive(Debug)]
pub struct Table {
    title: &'static str,
    /// Description of the measurement, in one or two sentences.
    how: String,
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes a table without rows. The names of the columns are separated by `|`.
    pub fn new(title: &'static str, columns: &'static str, how: impl Into<String>) -> Self {
        println!("\n{title}\n  {columns}");
        Self {
            title,
            how: how.into(),
            columns: columns.split('|').map(str::trim).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds and prints a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.columns.len(), "{cells:?}");
        println!("  {}", cells.join(" | "));
        self.rows.push(cells);
    }

    fn markdown(&self) -> String {
        let mut text = format!("\n## {}\n\n{}\n\n", self.title, self.how);
        let rule = self.columns.iter().map(|_| "---".to_owned()).collect();
        let columns = self.columns.iter().map(|&name| name.to_owned()).collect();
        for line in [columns, rule].iter().chain(&self.rows) {
            let _ = writeln!(text, "| {} |", line.join(" | "));
        }
        text
    }
}

/// Writes the page and its plot. A quick run writes to target/bench, since its numbers mean nothing.
pub fn write(extent: Extent, tables: &[Table], plot: &Plot) {
    let (page, image) = places(extent);
    let mut text = String::from(
        "# Speed\n\nFor reviewers of what pmdanixl costs. `make bench` writes this page. A ratio below 1 is in favour of \
         pmdanixl. Columns \"at most\" are the limits that the project sets itself; figures above them are not good enough \
         yet. Where a figure has a range, it is the median of several runs, and their least and greatest result. \
         On a shared machine, absolute times can double between two runs: compare figures of one run.\n\n",
    );
    if extent == Extent::Quick {
        text.push_str(
            "**From a quick run (`QUICK=1`), which shows that it works and no more.**\n\n",
        );
    }
    let _ = writeln!(text, "{}\n", machine());
    text.push_str("![time of a fetch by agents](images/speed.png)\n");
    text.extend(tables.iter().map(Table::markdown));
    text.push_str(&uprobes());
    for place in [&page, &image] {
        fs::create_dir_all(place.parent().expect("a directory")).expect("made");
    }
    fs::write(&page, text).expect("written");
    plot.draw(&image);
    println!("\nwritten: {}, {}", page.display(), image.display());
}

/// Section of docs/speed.md that `make uprobes` writes, the last one, or "".
fn uprobes() -> String {
    let page = super::support::project("docs/speed.md");
    let page = fs::read_to_string(page).unwrap_or_default();
    page.find(UPROBES)
        .map_or_else(String::new, |at| page[at..].to_owned())
}

fn places(extent: Extent) -> (PathBuf, PathBuf) {
    let top = super::support::project(match extent {
        Extent::Full => "docs",
        Extent::Quick => "target/bench",
    });
    (top.join("speed.md"), top.join("images/speed.png"))
}

/// Description of the machine.
fn machine() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").expect("there");
    let model = cpus.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == "model name").then(|| value.trim().to_owned())
    });
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").expect("there");
    // Major and minor version only: the rest is the build of one machine.
    let kernel: Vec<&str> = kernel.trim().split('.').take(2).collect();
    let said = |program, option| super::support::run(Command::new(program).arg(option));
    let pcp = said("pminfo", "--version");
    let pcp = pcp.trim().rsplit(' ').next().unwrap_or_default();
    let rust = said("rustc", "--version");
    let rust = rust.split(' ').nth(1).unwrap_or_default();
    format!(
        "The machine: {}, {count} CPUs, Linux {}, PCP {pcp}, Rust {rust}.",
        model.as_deref().unwrap_or("of unknown model"),
        kernel.join(".")
    )
}

/// One line of the plot: agents and milliseconds.
#[derive(Debug)]
pub struct Line {
    /// Name in the key.
    pub title: &'static str,
    /// Style for gnuplot(1): colour and dashes.
    pub style: &'static str,
    /// Agents, median and 99th percentile.
    pub points: Vec<(usize, f64, f64)>,
}

/// Times of fetches by the number of agents.
#[derive(Debug, Default)]
pub struct Plot {
    /// Lines in the order of drawing.
    pub lines: Vec<Line>,
}

impl Plot {
    fn draw(&self, image: &Path) {
        let mut script = format!(
            "set terminal pngcairo size 900,560 font 'DejaVu Sans,11' background '#ffffff'\nset output '{}'\n\
             set logscale xy\nset xrange [0.7:*]\nset xlabel 'agents'\nset ylabel 'milliseconds, as the client sees it'\n\
             set title 'A fetch through pmcd: median, and up to the 99th percentile'\n\
             set key top left reverse Left spacing 1.2\nset grid lc '#dddddd' lw 1\nset border 3\nset tics nomirror\n\
             set format y '%g'\nset format x '%g'\n",
            image.display()
        );
        for (at, line) in self.lines.iter().enumerate() {
            let _ = writeln!(script, "$line{at} << end");
            for (agents, median, high) in &line.points {
                let _ = writeln!(script, "{agents} {median} {high}");
            }
            script.push_str("end\n");
        }
        let lines = self.lines.iter().enumerate().map(|(at, line)| {
            let (title, style) = (line.title, line.style);
            [
                format!(
                    "$line{at} using 1:2 with linespoints pt 7 ps 0.9 lw 2 {style} title '{title}'"
                ),
                format!("$line{at} using 1:2:2:3 with yerrorbars pt 0 lw 1 {style} notitle"),
            ]
        });
        let _ = writeln!(
            script,
            "plot {}",
            lines.flatten().collect::<Vec<_>>().join(", ")
        );
        let mut gnuplot = Command::new("gnuplot")
            .stdin(Stdio::piped())
            .spawn()
            .expect("gnuplot is installed: scripts/setup bench");
        let input = gnuplot.stdin.take().expect("piped");
        (&input).write_all(script.as_bytes()).expect("it reads");
        drop(input);
        assert!(gnuplot.wait().expect("our child").success(), "{script}");
    }
}
