/** Three to twenty runs, each against the first. */

import { useMemo } from "preact/hooks";
import { StepWindows, WindowContext } from "../charts/zoom";
import { Notes } from "../pieces/notes";
import { Parts } from "../pieces/parts";
import { VerdictView } from "../pieces/verdict";
import type { ManyRunsPage } from "../schema";

export function ManyRunsView({ page }: { page: ManyRunsPage }) {
  const steps = useMemo(() => new StepWindows(null, null), []);
  return (
    <WindowContext.Provider value={steps}>
      <VerdictView verdict={page.verdict} />
      <Parts parts={page.parts} />
      <Notes title="Notes" lines={page.notes} />
    </WindowContext.Provider>
  );
}
