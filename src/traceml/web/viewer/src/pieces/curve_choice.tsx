/** Further metrics of the compared runs, whose curves are fetched when somebody asks for them. */

import { useContext, useEffect, useState } from "preact/hooks";
import { readChoicesOf, writeChoices } from "../address";
import { fetched } from "../live";
import { comparedQuery } from "../place";
import type { Figure } from "../schema";
import { BaseContext } from "../served";

/** The address of the curves, as the page's own says which runs are compared. */
function curvesAddress(base: string, metrics: readonly string[]): string {
  return `${base}/api/compare/curves?${comparedQuery(metrics.map((name) => ["metric", name]))}`;
}

export interface Chosen {
  figures: readonly Figure[];
  error: string | null;
  names: readonly string[];
  add: (name: string) => void;
}

const MOST = 12; // as many as the server draws at once

/** The curves that the reader added; the address keeps which. */
export function useChosenCurves(further: readonly string[]): Chosen {
  const base = useContext(BaseContext);
  const [names, setNames] = useState<readonly string[]>(() =>
    readChoicesOf("metric").filter((name) => further.includes(name)),
  );
  const [figures, setFigures] = useState<readonly Figure[]>([]);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
    if (base === null || names.length === 0) return;
    const request = new AbortController();
    fetched<{ figures: readonly Figure[] }>(curvesAddress(base, names), request.signal)
      .then((answer) => {
        setFigures(answer.figures);
        setError(null);
      })
      .catch((reason: unknown) => {
        if (!request.signal.aborted) setError((reason as Error).message);
      });
    return () => request.abort();
  }, [base, names]);
  const add = (name: string): void => {
    if (!further.includes(name) || names.includes(name)) return;
    const next = [...names, name].slice(-MOST);
    writeChoices({ metric: next });
    setNames(next);
  };
  return { figures, error, names, add };
}

interface Properties {
  further: readonly string[];
  chosen: Chosen;
}

export function CurveChoice({ further, chosen }: Properties) {
  const base = useContext(BaseContext);
  const [text, setText] = useState("");
  if (base === null || further.length === 0) return null;
  const take = (value: string): void => {
    if (further.includes(value)) {
      chosen.add(value);
      setText("");
    } else setText(value);
  };
  return (
    <>
      <input
        type="search"
        list="further-curves"
        value={text}
        placeholder={`Draw one of ${further.length} more metrics`}
        aria-label="Draw a further metric"
        onInput={(event) => take(event.currentTarget.value)}
      />
      <datalist id="further-curves">
        {further.map((name) => (
          <option key={name} value={name} />
        ))}
      </datalist>
      {chosen.error !== null && <span role="alert">{chosen.error}</span>}
    </>
  );
}
