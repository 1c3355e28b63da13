//! `alloc` and `burn` commands: resident memory and busy CPUs.

use std::hint::black_box;
use std::time::Duration;

use clap::Args;

const MIB: usize = 1 << 20;

#[derive(Args)]
pub(crate) struct Alloc {
    mib: usize,
    /// Allocate in pieces of this size
    #[arg(long, value_name = "MIB")]
    step: Option<usize>,
    /// Pause after each piece
    #[arg(long, value_name = "MILLISECONDS", value_parser = crate::milliseconds)]
    every: Option<Duration>,
}

impl Alloc {
    pub(crate) async fn run(self) -> anyhow::Result<u8> {
        let step = self.step.unwrap_or(self.mib).max(1);
        let mut held = Vec::new();
        let mut taken = 0;
        while taken < self.mib {
            let piece = step.min(self.mib - taken);
            // Written and not only reserved: the kernel counts a page from its first write.
            held.push(black_box(vec![0xa5_u8; piece * MIB]));
            taken += piece;
            println!("holding {taken} MiB");
            match self.every {
                Some(pause) => tokio::time::sleep(pause).await,
                None => tokio::task::yield_now().await,
            }
        }
        std::future::pending::<()>().await;
        black_box(held);
        Ok(0)
    }
}

#[derive(Args)]
pub(crate) struct Burn {
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Exit with 0 after this time
    #[arg(long = "for", value_name = "SECONDS", value_parser = crate::seconds)]
    duration: Option<Duration>,
}

impl Burn {
    pub(crate) async fn run(self) -> anyhow::Result<u8> {
        for _ in 0..self.threads {
            std::thread::spawn(|| {
                let mut n = 0_u64;
                loop {
                    n = black_box(n.wrapping_add(1));
                }
            });
        }
        println!("burning on {} threads", self.threads);
        match self.duration {
            Some(duration) => tokio::time::sleep(duration).await,
            None => std::future::pending().await,
        }
        Ok(0)
    }
}
