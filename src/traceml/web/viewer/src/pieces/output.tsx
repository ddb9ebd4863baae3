/** The last lines that the training printed; stays at the end unless one has scrolled up. */

import { useLayoutEffect, useRef } from "preact/hooks";
import { still } from "../still";

function lastLines(count: number): string {
  return count === 1 ? "The last line" : `The last ${count} lines`;
}

export const Output = still(function Output({ lines }: { lines: readonly string[] | null }) {
  const pane = useRef<HTMLPreElement>(null);
  const isAtEnd = useRef(true);
  useLayoutEffect(() => {
    if (isAtEnd.current && pane.current) pane.current.scrollTop = pane.current.scrollHeight;
  }, [lines]);
  if (lines === null || lines.length === 0) return null;
  const onScroll = (): void => {
    const { scrollTop, scrollHeight, clientHeight } = pane.current!;
    isAtEnd.current = scrollHeight - scrollTop - clientHeight < 8;
  };
  return (
    <section class="card part" aria-labelledby="title-output" data-part tabIndex={-1} id="output">
      <header>
        <h2 id="title-output">Output</h2>
        <p class="note">{lastLines(lines.length)} that the training printed</p>
      </header>
      <pre ref={pane} class="output" tabIndex={0} onScroll={onScroll}>
        {lines.join("\n")}
      </pre>
    </section>
  );
});
