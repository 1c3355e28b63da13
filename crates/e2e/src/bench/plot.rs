//! Plots of the figures: grouped bars, as SVG that is readable on light and dark pages.

use std::fmt::Write as _;

use super::floor::{Floor, Load};
use super::growth::Growth;
use super::kubelet::Batch;
use super::report::Report;

const WIDTH: f64 = 720.0;
const BAR: f64 = 18.0;
const GAP: f64 = 14.0;
const TOP: f64 = 44.0;
/// Left edge of the bars, and the width of the figures at their right.
const LEFT: f64 = 210.0;
const RIGHT: f64 = 90.0;
const COLOURS: [&str; 4] = ["#9aa5b1", "#627d98", "#2f9e8f", "#d9822b"];

/// One plot.
pub struct Bars {
    pub title: String,
    pub unit: &'static str,
    /// Name and bars of each group.
    pub groups: Vec<(String, Vec<(String, f64)>)>,
}

impl Bars {
    pub fn svg(&self) -> String {
        let most = self.groups.iter().flat_map(|(_, bars)| bars).map(|(_, value)| *value);
        let most = most.fold(f64::MIN_POSITIVE, f64::max);
        let mut body = String::new();
        let mut y = TOP;
        for (group, bars) in &self.groups {
            text(&mut body, 12.0, y + BAR - 4.0, "start", group);
            for (index, (name, value)) in bars.iter().enumerate() {
                let width = (WIDTH - LEFT - RIGHT) * value / most;
                let colour = COLOURS.iter().cycle().nth(index).copied().unwrap_or_default();
                text(&mut body, LEFT - 8.0, y + BAR - 4.0, "end", name);
                let _ = writeln!(
                    body,
                    r#"<rect x="{LEFT}" y="{y}" width="{width:.1}" height="{BAR}" fill="{colour}"/>"#
                );
                let figure = format!("{value:.2} {}", self.unit);
                text(&mut body, LEFT + width + 6.0, y + BAR - 4.0, "start", &figure);
                y += BAR + 3.0;
            }
            y += GAP;
        }
        let mut head = String::new();
        text(&mut head, 12.0, 22.0, "start", &self.title);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {y}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{head}{body}</svg>\n"
        )
    }
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        out,
        r##"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="#243b53">{words}</text>"##
    );
}

impl Report {
    /// The plots and their file names.
    pub fn plots(&self) -> Vec<(&'static str, Bars)> {
        let mut plots = vec![
            (
                "starts.svg",
                self.batches(
                    "All pods of a batch ready",
                    |f| f.start().map(|start| start.all),
                    |b| b.all_ready,
                ),
            ),
            (
                "ends.svg",
                self.batches(
                    "All pods of a batch gone",
                    |f| f.stop().map(|stop| stop.all),
                    |b| b.all_gone,
                ),
            ),
        ];
        if !self.growth.is_empty() {
            let memory = |growth: &Growth| {
                let memory = growth.loaded.memory;
                vec![("resident", memory.resident), ("anonymous", memory.anonymous)]
            };
            let time = |growth: &Growth| {
                vec![
                    ("all ready", growth.all_ready),
                    ("agent CPU", growth.start_cpu),
                    ("all gone", growth.all_gone),
                ]
            };
            let cpu = |growth: &Growth| vec![("idle", growth.loaded.millicores)];
            plots.push((
                "memory.svg",
                self.by_growth("Memory of the agent, fake runtime", "MB", memory),
            ));
            plots.push((
                "growth.svg",
                self.by_growth("Pods started and deleted, fake runtime", "s", time),
            ));
            plots.push((
                "rest.svg",
                self.by_growth("CPU of the agent, fake runtime", "millicores", cpu),
            ));
        }
        plots
    }

    /// One duration per batch, next to the floors.
    fn batches(
        &self,
        title: &str,
        of_floor: impl Fn(&Floor) -> Option<f64>,
        of_batch: impl Fn(&Batch) -> f64,
    ) -> Bars {
        let sizes = self.kubelets.iter().flat_map(|kubelet| &kubelet.batches).map(|b| b.pods);
        let mut sizes: Vec<usize> = sizes.collect();
        sizes.sort_unstable();
        sizes.dedup();
        let groups = sizes.into_iter().map(|pods| {
            let floors = [(Load::None, "bare CRI calls"), (Load::Api, "bare, API loaded")];
            let floor = |(load, name): (Load, &str)| {
                Some((name.to_owned(), of_floor(self.floor(pods, load)?)?))
            };
            let mut bars: Vec<(String, f64)> = floors.into_iter().filter_map(floor).collect();
            for kubelet in &self.kubelets {
                let batch = kubelet.batches.iter().find(|batch| batch.pods == pods);
                bars.extend(batch.map(|batch| (kubelet.kubelet.clone(), of_batch(batch))));
            }
            (format!("{pods} pods"), bars)
        });
        Bars { title: title.to_owned(), unit: "s", groups: groups.collect() }
    }

    fn by_growth(
        &self,
        title: &str,
        unit: &'static str,
        bars: impl Fn(&Growth) -> Vec<(&'static str, f64)>,
    ) -> Bars {
        let named = |(name, value): (&str, f64)| (name.to_owned(), value);
        let groups = self.growth.iter().map(|growth| {
            (format!("{} pods", growth.pods), bars(growth).into_iter().map(named).collect())
        });
        Bars { title: title.to_owned(), unit, groups: groups.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_bar_fills_the_plot_and_names_are_escaped() {
        let bars = vec![("a<b".to_owned(), 1.0), ("c".to_owned(), 4.0)];
        let picture = Bars { title: "t".into(), unit: "s", groups: vec![("g".into(), bars)] };
        let svg = picture.svg();
        assert!(svg.contains("width=\"420.0\"") && svg.contains("width=\"105.0\""), "{svg}");
        assert!(svg.contains("a&lt;b") && svg.contains("4.00 s"), "{svg}");
    }
}
