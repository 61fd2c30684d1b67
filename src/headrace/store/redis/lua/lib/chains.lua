-- Chains: runs of jobs of one lane of which each waits for the job at the place before it. Needs release, closed and rings.
-- The elements of those that are blocked are a list, in their order. The end of a job lets the first of them go, or cancels the ones behind it
-- one by one. Others that leave it leave an empty element, so that no position moves.
-- Those that go are ready in lanes of their own, one for each lane, so that a claim takes many at a time.

-- The chain that has a place of a batch, {from, to, a place in its lane, its lane}, or nil.
local function chain_of(p, batch, ord)
  local known = links_of(p, batch)
  for _, chain in ipairs(known and known.chains or NONE) do if chain[1] <= ord and ord <= chain[2] then return chain end end
end

-- A blocked job leaves its chain. Answers its element and the chain, or nil: it is in none, or not any more.
local function leave_chain(p, id)
  local batch, ord = sub(id, 1, 14), read('>I2', id, 15)
  local chain = chain_of(p, batch, ord)
  if not chain then return nil end
  local first = batch .. pack('>I2', chain[1])
  local key = p .. CHAIN .. first
  local index = ord - chain[2] - 1 + c('LLEN', key)
  local el = index >= 0 and c('LINDEX', key, index)
  if not el or el == '' and index > 0 then return nil end
  if index > 0 then
    c('LSET', key, index, '')
  else
    c('LPOP', key)
    strip(key)
    if c('EXISTS', key) == 0 then c('HDEL', p .. CHAINS, first) end
  end
  if el == '' then return nil end
  unchained[p] = (unchained[p] or 0) + 1
  return el, chain
end

-- What is behind a job that has ended, and that is at the place before: see `turned_run`.
local function follow_chain(p, batch, ord, chain, after)
  effort, followed = effort - NEXT, followed + 1
  if after == 'o' then return release_next(p, batch, ord, chain[1], chain[2], chain[4]) end
  effort = effort - 1
  local id = batch .. pack('>I2', ord)
  local el = leave_chain(p, id)
  if not el then return end
  local note = why_cancelled('c', 'd', batch .. pack('>I2', ord - 1))
  ended(p, id, 'c', moment, loose(chain[3], chain[4], note, restated(el, 0)))
  turned(p, id, nil, 'c')
end

-- What is to be followed, as CHANGED keeps it for another script, and back.
local function chain_words(one) return 's' .. one[5] .. one[2] .. pack('>I2', one[3]) .. one[1] end
local function follow_words(entry)
  local p, batch, ord = sub(entry, 19), sub(entry, 3, 16), read('>I2', entry, 17)
  local chain = chain_of(p, batch, ord)
  if chain then follow_chain(p, batch, ord, chain, sub(entry, 2, 2)) end
end
