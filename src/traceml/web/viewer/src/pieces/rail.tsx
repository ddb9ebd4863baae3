/** The diagnoses, side by side: each names its section, what was found and what to do. */

import { still } from "../still";
import type { Fact, FindingCard, Part, Verdict } from "../schema";
import { Columns } from "./columns";
import { Badge } from "./tone";

interface Properties {
  rail: readonly FindingCard[];
  parts: readonly Part[];
  verdict: Verdict;
}

export const Rail = still(function Rail({ rail, parts, verdict }: Properties) {
  if (rail.length === 0) return null;
  const heightOf = (card: FindingCard): number => lengthOf(card, verdict);
  return (
    <section class="rail" aria-label="Diagnostics" data-part tabIndex={-1}>
      <Columns items={rail} count={3} height={heightOf} keyOf={keyOf}>
        {(card) => <Finding card={card} href={placeOf(card, parts)} verdict={verdict} />}
      </Columns>
    </section>
  );
});

function keyOf({ section, kind, ranks }: FindingCard): string {
  return [section, kind, ...ranks].join(" ");
}

/** By the words that are in it: about so many lines. */
function lengthOf(card: FindingCard, verdict: Verdict): number {
  const said = card.summary === verdict.why ? 0 : card.summary.length;
  const next = card.action === verdict.next ? 0 : (card.action?.length ?? 0);
  const lines = Math.ceil(said / 48) + Math.ceil(next / 48);
  return 2 + lines + 1.2 * Math.ceil(factsOf(card, verdict).length / 3);
}

/** The part that a diagnosis belongs to. */
function placeOf(card: FindingCard, parts: readonly Part[]): string | null {
  const part = parts.find(
    ({ title, finding }) => finding?.section === card.section || title === card.section,
  );
  return part ? `#${part.id}` : null;
}

interface FindingProperties {
  card: FindingCard;
  href: string | null;
  verdict: Verdict;
}

function Finding({ card, href, verdict }: FindingProperties) {
  const facts = factsOf(card, verdict);
  return (
    <article class={`card finding tone-${card.severity}`}>
      <header>
        <Badge tone={card.severity}>{card.status}</Badge>
        <h3>{href === null ? card.section : <a href={href}>{card.section}</a>}</h3>
      </header>
      {/* What the verdict has just said is not said twice. */}
      {card.summary !== verdict.why && <p>{card.summary}</p>}
      {card.action && card.action !== verdict.next && card.severity !== "good" && (
        <p class="action">
          <b>Next</b> {card.action}
        </p>
      )}
      {facts.length > 0 && (
        <ul class="facts">
          {facts.map((fact, index) => (
            <li key={index}>
              {fact.label && <span>{fact.label} </span>}
              {fact.value}
            </li>
          ))}
        </ul>
      )}
    </article>
  );
}

function factsOf(card: FindingCard, verdict: Verdict): readonly Fact[] {
  const isPredicted = verdict.gain !== null && card.summary === verdict.why; // above, in words
  return [
    ...(card.gain && !isPredicted ? [{ label: "If fixed", value: card.gain }] : []),
    ...(card.since ? [{ label: "", value: card.since }] : []),
    ...card.evidence,
  ];
}
