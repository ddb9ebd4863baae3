/** What differs between two texts: lines with a sign, or words inside of lines. */

import { useState } from "preact/hooks";
import type { Diff, DiffLine } from "../schema";
import { still } from "../still";

export const DiffView = still(function DiffView({ diff }: { diff: Diff }) {
  const [isOpen, setOpen] = useState(diff.is_open);
  return (
    <details
      class="diff"
      open={diff.is_open}
      onToggle={(event) => setOpen(event.currentTarget.open)}
    >
      <summary>
        <b>{diff.title}</b> {diff.note && <span class="note">{diff.note}</span>}
      </summary>
      {isOpen && (
        <div class="scroll diff-scroll" tabIndex={0} role="region" aria-label={diff.title}>
          <div class="diff-lines">
            {diff.lines.map((line, index) => (
              <Line key={index} line={line} />
            ))}
          </div>
        </div>
      )}
    </details>
  );
});

function Line({ line }: { line: DiffLine }) {
  if (line.parts.length === 0) {
    // The sign is in the text already, as git writes it.
    return <div class={`diff-line diff-${line.op}`}>{line.text || " "}</div>;
  }
  return (
    <div class="diff-line diff-words">
      {line.parts.map((part, place) =>
        part.op === "added" ? (
          <ins key={place}>{part.text}</ins>
        ) : part.op === "removed" ? (
          <del key={place}>{part.text}</del>
        ) : (
          <span key={place}>{part.text}</span>
        ),
      )}
    </div>
  );
}
