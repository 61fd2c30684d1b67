-- Some of the running jobs that hold units of a limit key. Reads only.
-- ARGV: 1 key, 2 at most.  Answer: ids.
local p, key, most = KEYS[1], ARGV[1], tonumber(ARGV[2])
local ids, runs = {}, 2000  -- to look at: a lease of many lanes has 1,000
for _, no in ipairs(c('ZRANGE', p .. LEASES, 0, 499)) do
  local header, index, times = lease_header(p, no), 0, nil
  for r = RUNS, #header, 4 do
    runs = runs - 1
    for _, own in ipairs(keys_of(header[r]) or {}) do
      if own[2] == key then
        times = times or settled_times(c('GET', p .. SETTLED_LOG .. no))
        for i = index, index + header[r + 2] - 1 do
          if #ids >= most then break end
          if not times[i] then ids[#ids + 1] = sub(c('LINDEX', p .. LEASE .. no, i + 1), 1, 16) end
        end
      end
    end
    if #ids >= most or runs <= 0 then return ids end
    index = index + header[r + 2]
  end
end
return ids
