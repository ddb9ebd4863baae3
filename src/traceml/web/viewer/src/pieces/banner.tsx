/** What is wrong with the page itself, as opposed to the run. */

import type { Live } from "../live";

export function Banner({ live }: { live: Live }) {
  if (live.isOver) {
    return (
      <p class="banner tone-info" role="status">
        {live.error}
      </p>
    );
  }
  if (live.error !== null && live.page !== null) {
    return (
      <p class="banner tone-warn" role="alert">
        {live.error} What is shown here is the last that was seen of it.
      </p>
    );
  }
  if (!live.isLost) return null;
  if (live.page?.type === "run" && live.page.head.state !== "live") {
    return (
      <p class="banner tone-info" role="status">
        Connection lost. The run is over and this is all of it; `traceml ui` serves it again.
      </p>
    );
  }
  return (
    <p class="banner tone-warn" role="status">
      Connection lost, trying again. What is shown here no longer changes until then.
    </p>
  );
}
