//! How looks at a line follow one another, which is measured for each kind of processor: who looks all the time takes the line from whoever is about to write there.

use crate::turn::is_amd;

/// The pace of a rank.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Looks before anything else is looked after: some hundred nanoseconds.
    pub soon: u32,
    /// The same with pauses in between.
    pub soon_calmly: u32,
    /// Two pauses in place of one. On Intel's one is too short by a little, and four are no better; on AMD's, where a pause takes half as long as a line on its way, two are too long: words that the last
    /// to arrive carries take a fifth longer.
    twice: bool,
}

impl Pace {
    /// What suits this processor.
    pub fn here() -> Pace {
        if is_amd() {
            Pace { soon: 256, soon_calmly: 24, twice: false }
        } else {
            Pace { soon: 64, soon_calmly: 12, twice: true }
        }
    }

    /// Between two looks.
    #[inline(always)]
    pub fn pause(self) {
        std::hint::spin_loop();
        if self.twice {
            std::hint::spin_loop();
        }
    }
}
