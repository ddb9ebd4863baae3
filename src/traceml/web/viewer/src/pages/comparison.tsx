/** What changed between two runs, or two groups of them. */

import { useComparedSteps, WindowContext } from "../charts/zoom_of_runs";
import { Notes } from "../pieces/notes";
import { Parts } from "../pieces/parts";
import { VerdictView } from "../pieces/verdict";
import type { ComparisonPage } from "../schema";

export function ComparisonView({ page }: { page: ComparisonPage }) {
  const steps = useComparedSteps(page.parts);
  return (
    <WindowContext.Provider value={steps}>
      <section class="head" aria-label="What is compared">
        <ul class="legend-lines">
          {page.legend.map((line, index) => (
            <li key={index}>{line}</li>
          ))}
        </ul>
      </section>
      <VerdictView verdict={page.verdict} further={page.next}>
        {page.diagnosis && <p class="diagnosis">{page.diagnosis}</p>}
      </VerdictView>
      <Parts parts={page.parts} />
      <Notes title="Notes" lines={page.notes} />
    </WindowContext.Provider>
  );
}
