/** Three to twenty runs, each against the first. */

import { useComparedSteps, WindowContext } from "../charts/zoom_of_runs";
import { Notes } from "../pieces/notes";
import { Parts } from "../pieces/parts";
import { VerdictView } from "../pieces/verdict";
import type { ManyRunsPage } from "../schema";

export function ManyRunsView({ page }: { page: ManyRunsPage }) {
  const steps = useComparedSteps(page.parts);
  return (
    <WindowContext.Provider value={steps}>
      <VerdictView verdict={page.verdict} />
      <Parts parts={page.parts} />
      <Notes title="Notes" lines={page.notes} />
    </WindowContext.Provider>
  );
}
