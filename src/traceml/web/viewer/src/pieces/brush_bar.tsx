/** The marked runs: how many, the filter that finds them, and what can be done with them. */

import { useState } from "preact/hooks";

interface Properties {
  count: number;
  of: number;
  filter: string;
  /** Where the list of these runs is. */
  list: string;
  onKeep: () => void;
  onClear: () => void;
}

export function BrushBar({ count, of, filter, list, onKeep, onClear }: Properties) {
  const [isCopied, setCopied] = useState(false);
  const command = `traceml runs --filter '${filter.replaceAll("'", `'\\''`)}'`;
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(command);
      setCopied(true);
      window.setTimeout(() => setCopied(false), 2000);
    } catch {
      setCopied(false); // not allowed here: the words stand beside it
    }
  };
  return (
    <div class="compare brush-bar" role="region" aria-label="Marked runs">
      <span role="status">
        <b>
          {count} of {of}
        </b>{" "}
        runs
      </span>
      <code class="brush-filter" tabIndex={0} aria-label="As a filter">
        {filter}
      </code>
      <span class="brush-actions">
        <button type="button" class="main-button" onClick={onKeep} disabled={count === 0}>
          Keep only these
        </button>
        <a href={list}>Open as list</a>
        <button type="button" class="quiet" title={command} onClick={() => void copy()}>
          {isCopied ? "Copied" : "Copy command"}
        </button>
        <button type="button" class="quiet" onClick={onClear}>
          Clear
        </button>
      </span>
    </div>
  );
}
