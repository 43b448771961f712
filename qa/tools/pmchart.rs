// SPDX-License-Identifier: GPL-2.0-or-later

//! The views of share/pmchart: their contents, and the charts that pmchart draws without a screen.

use crate::support::share::{files_in, is_metric, link, names_in, text_of, tool};
use crate::support::{Home, output, project, run, text, wait_for};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

const VIEWS: &str = "share/pmchart";
const HEAD: &str = "#kmchart\nversion 1\n";

/// Archive for a chart or view, described in docs/tutorial.md, with an interval in seconds and a number of samples.
fn archive_for(chart: &str) -> [&'static str; 3] {
    match chart.contains(".tcp") {
        // What goes over TCP is read every 10 s. In the first seconds there is no share.
        true => ["docs/tutorial/node2", "10", "15"],
        false => ["docs/tutorial/node1", "1", "235"],
    }
}

/// pmchart with an archive, without a screen and without settings of the user.
fn pmchart(home: &Home, archive: &str) -> Command {
    let mut pmchart = tool("timeout");
    pmchart
        .args(["120", "pmchart", "-z", "-a"])
        .arg(project(archive))
        .env("QT_QPA_PLATFORM", "offscreen")
        .env("XDG_RUNTIME_DIR", home.runtime_dir())
        .env("HOME", home.path(""));
    pmchart
}

/// Runs pmchart to its end, and then ends pmtime. pmchart starts pmtime and does not wait for it, and pmtime writes to
/// its home at its end.
fn show(home: &Home, pmchart: &mut Command) -> String {
    let said = output(pmchart);
    assert!(said.status.success(), "{pmchart:?}\n{}", text(&said));
    let of_home = format!("HOME={}", home.path("").display()).into_bytes();
    wait_for("pmtime has ended", || {
        let processes = fs::read_dir("/proc").expect("mounted").flatten();
        let mut left = processes.filter_map(|process| {
            let environ = fs::read(process.path().join("environ")).ok()?;
            let is_ours = environ.split(|&byte| byte == 0).any(|line| line == of_home);
            is_ours.then(|| process.file_name().to_str()?.parse().ok())?
        });
        left.all(|pid| kill(Pid::from_raw(pid), Signal::SIGKILL) == Err(Errno::ESRCH))
            .then_some(())
    });
    text(&said)
}

/// Charts of a view, each as a separate view: without a screen, pmchart 6.0 scales only the last chart to its values.
fn charts(view: &str) -> Vec<String> {
    let view = text_of(&format!("{VIEWS}/{view}"));
    let charts = view.split("\nchart ").skip(1);
    charts.map(|chart| format!("{HEAD}chart {chart}")).collect()
}

/// Draws a chart with pmchart into a file, in the format of the suffix of its name.
fn draw(home: &Home, chart: &str, image: &Path) {
    let view = home.path("view");
    fs::write(&view, chart).expect("written");
    let [archive, interval, samples] = archive_for(chart);
    let mut pmchart = pmchart(home, archive);
    pmchart.args(["-t", interval, "-O", "-5", "-s", samples, "-v", samples]);
    pmchart.args(["-W", "-g", "760x330", "-c"]).arg(view);
    show(home, pmchart.arg("-o").arg(image));
}

/// Picture: pixels line by line.
struct Picture {
    width: usize,
    height: usize,
    pixels: Vec<[u8; 3]>,
}

impl Picture {
    /// Parses the format PPM.
    fn parse(ppm: &[u8]) -> Self {
        let mut head = ppm.splitn(4, |&byte| byte == b'\n' || byte == b' ');
        assert_eq!(head.next(), Some(&b"P6"[..]));
        let mut number = || {
            let field = std::str::from_utf8(head.next()?).ok()?;
            field.parse::<usize>().ok()
        };
        let (width, height) = (number().expect("a width"), number().expect("a height"));
        let bytes = &ppm[ppm.len() - 3 * width * height..];
        let pixels = bytes.chunks_exact(3).map(|rgb| [rgb[0], rgb[1], rgb[2]]);
        Self {
            width,
            height,
            pixels: pixels.collect(),
        }
    }

    /// Picture that pmchart draws for a chart.
    fn drawn(home: &Home, chart: &str) -> Self {
        let image = home.path("image.ppm");
        let _ = fs::remove_file(&image);
        draw(home, chart, &image);
        Self::parse(&fs::read(image).expect("pmchart writes it"))
    }

    /// Picture in a PNG file.
    fn read(picture: &Path) -> Self {
        let mut python = Command::new("/usr/bin/python3");
        let python = python.arg(project("qa/pixels.py")).arg(picture);
        let read = output(python);
        assert!(read.status.success(), "{}", text(&read));
        Self::parse(&read.stdout)
    }

    /// Columns between the axes, down to that percentage of the picture: 50 is the upper two thirds of the area between
    /// the axes.
    fn columns(&self, percent: usize) -> impl Iterator<Item = (usize, BTreeSet<[u8; 3]>)> {
        // Below the title, and right of the scale.
        let rows = self.height / 8..self.height * percent / 100;
        let columns = self.width / 10..self.width * 97 / 100;
        columns.map(move |column| {
            let colours = rows
                .clone()
                .map(|row| self.pixels[row * self.width + column]);
            (column, colours.collect())
        })
    }

    /// Colours of the pixels in these columns.
    fn colours(&self, percent: usize) -> BTreeSet<[u8; 3]> {
        let columns = self.columns(percent);
        columns.flat_map(|(_, colours)| colours).collect()
    }

    /// First and last column with the colour of each rank.
    fn spans(&self, percent: usize) -> BTreeMap<usize, (usize, usize)> {
        let mut spans = BTreeMap::new();
        for (column, colours) in self.columns(percent) {
            for rank in ranks_in(&colours) {
                spans.entry(rank).or_insert((column, column)).1 = column;
            }
        }
        spans
    }
}

/// Rank with the colour of a pixel: pmchart gives yellow, blue, red and green to the four ranks.
fn ranks_in(colours: &BTreeSet<[u8; 3]>) -> Vec<usize> {
    let ranks = [[255, 255, 0], [0, 0, 255], [255, 0, 0], [0, 128, 0]];
    // Lines are blended with the background: a near colour counts.
    let is_there = |wanted: [u8; 3]| {
        let is_near =
            |colour: &[u8; 3]| (0..3).all(|part| colour[part].abs_diff(wanted[part]) < 70);
        colours.iter().any(is_near)
    };
    (0..4).filter(|&rank| is_there(ranks[rank])).collect()
}

#[test]
fn pmchart_opens_each_view_by_name() {
    let home = Home::new();
    link(VIEWS, &home.path(".pcp/pmchart"));
    for view in files_in(VIEWS) {
        let [archive, ..] = archive_for(&text_of(&format!("{VIEWS}/{view}")));
        let mut pmchart = pmchart(&home, archive);
        let said = show(&home, pmchart.args(["-C", "-c", &view]));
        assert!(
            !said.contains("Error") && !said.contains("pmchart:"),
            "{said}"
        );
    }
}

#[test]
fn view_metrics_exist_and_are_logged_by_default() {
    let group = |group| text_of(&format!("share/pmlogconf/nixl/{group}"));
    let default = group("summary") + &group("transport");
    let logged = |name: &str| {
        let mut groups = default.lines().filter_map(|line| line.strip_prefix('\t'));
        groups.any(|group| name == group || name.starts_with(&format!("{group}.")))
    };
    for view in files_in(VIEWS) {
        let text = text_of(&format!("{VIEWS}/{view}"));
        let names = names_in(&text);
        assert!(names.len() >= 5, "{view}: {names:?}");
        for name in names {
            assert!(is_metric(name) && logged(name), "{view}: {name}");
        }
    }
}

/// Chart of a view with these words in its title.
fn chart_of(view: &str, title: &str) -> String {
    let mut charts = charts(view).into_iter();
    let found = charts.find(|chart| chart.contains(title));
    found.unwrap_or_else(|| panic!("{view}: {title}"))
}

/// Ranks of the recording in a chart, down to a percentage of the picture.
fn ranks_of(home: &Home, view: &str, title: &str, percent: usize) -> Vec<usize> {
    let picture = Picture::drawn(home, &chart_of(view, title));
    ranks_in(&picture.colours(percent))
}

#[test]
fn throughput_chart_draws_all_four_ranks() {
    let home = Home::new();
    assert_eq!(ranks_of(&home, "NIXL", "bytes sent", 60), [0, 1, 2, 3]);
    // Nothing was received.
    let nothing: [usize; 0] = [];
    assert_eq!(ranks_of(&home, "NIXL", "bytes received", 60), nothing);
}

#[test]
fn latency_charts_show_the_slow_ranks() {
    let home = Home::new();
    assert_eq!(ranks_of(&home, "NIXL-latency", "median", 50), [2]);
    assert_eq!(ranks_of(&home, "NIXL-latency", "times to post", 50), [1]);
}

#[test]
fn loss_charts_show_the_rank_with_the_full_ring() {
    let home = Home::new();
    assert_eq!(ranks_of(&home, "NIXL-loss", "most events", 50), [3]);
    assert_eq!(ranks_of(&home, "NIXL-loss", "found full", 50), [3]);
}

#[test]
fn transport_charts_show_the_rank_on_tcp() {
    let home = Home::new();
    assert_eq!(ranks_of(&home, "NIXL-transport", "share", 50), [2]);
}

#[test]
fn views_have_five_charts_that_pmchart_draws() {
    let home = Home::new();
    for view in files_in(VIEWS) {
        let charts = charts(&view);
        assert_eq!(charts.len(), 5, "{view}");
        for chart in charts {
            // The legend has a colour for each value, also for 0.
            let colours = Picture::drawn(&home, &chart).colours(100);
            let has_others = ["nixl.agent.peer.", "nixl.process."];
            let has_others = has_others.iter().any(|name| chart.contains(name));
            let by_agent = chart.contains("%i") && !has_others;
            let ranks = ranks_in(&colours);
            assert!(!by_agent || ranks == [0, 1, 2, 3], "{ranks:?} in {chart}");
            assert!(colours.len() > 20, "{} in {chart}", colours.len());
        }
    }
}

#[test]
fn documentation_pictures_match_pmchart() {
    let home = Home::new();
    for (view, title, picture, percent) in [
        ("NIXL", "bytes sent", "pmchart-nixl.png", 60),
        ("NIXL-latency", "median", "pmchart-latency.png", 50),
        ("NIXL-loss", "most events", "pmchart-loss.png", 50),
        ("NIXL-transport", "share", "pmchart-transport.png", 50),
    ] {
        let chart = chart_of(view, title);
        let picture = project("docs/images").join(picture);
        // PICTURES=1 makes the pictures. pmchart does not compress them.
        if std::env::var_os("PICTURES").is_some() {
            let file = home.path("picture.png");
            draw(&home, &chart, &file);
            let mut pngquant = Command::new("pngquant");
            run(pngquant
                .args(["--force", "--output"])
                .args([&picture, &file]));
        }
        let (drawn, shown) = (Picture::drawn(&home, &chart), Picture::read(&picture));
        // Without the menu above. Its height depends on the fonts.
        assert_eq!(drawn.width, shown.width, "{title}");
        assert!(
            drawn.height.abs_diff(shown.height) < 40,
            "{title}: {}, {}",
            drawn.height,
            shown.height
        );
        // Fonts also move the area between the axes, by less than this.
        let near = drawn.width / 20;
        let (now, then) = (drawn.spans(percent), shown.spans(percent));
        let are_near = now.len() == then.len()
            && now.iter().zip(&then).all(|((rank, now), (other, then))| {
                rank == other && now.0.abs_diff(then.0) < near && now.1.abs_diff(then.1) < near
            });
        assert!(are_near, "{title}: {now:?}, and in the picture {then:?}");
    }
}
